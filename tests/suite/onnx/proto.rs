//! The parts of ONNX's protobuf messages that the node tests need (onnx.proto of version 1.20), from the wire
//! format.

use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

#[derive(Debug)]
pub struct Graph {
    pub nodes: Vec<Node>,
    pub initializers: usize,
    pub inputs: Vec<ValueInfo>,
    pub outputs: Vec<ValueInfo>,
}

#[derive(Debug)]
pub struct ValueInfo {
    pub name: String,
    pub is_tensor: bool,
}

#[derive(Debug)]
pub struct Node {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub op: String,
    pub attributes: Vec<Attribute>,
    pub domain: String,
}

#[derive(Debug)]
pub struct Attribute {
    pub name: String,
    pub float: f32,
    pub int: i64,
    pub text: String,
    pub tensor: Option<TensorData>,
    pub floats: Vec<f32>,
    pub ints: Vec<i64>,
}

/// `TensorProto`.
#[derive(Clone, Debug)]
pub struct TensorData {
    pub dims: Vec<i64>,
    pub kind: i32,
    pub floats: Vec<f32>,
    pub small: Vec<i64>,
    pub ints: Vec<i64>,
    pub raw: Vec<u8>,
    pub doubles: Vec<f64>,
}

type Result<T> = std::result::Result<T, DecodeError>;

/// A message as its fields, in order.
struct Fields(Vec<(u32, Field)>);

enum Field {
    Varint(u64),
    Four([u8; 4]),
    Eight([u8; 8]),
    Bytes(Vec<u8>),
}

impl Fields {
    fn of(mut bytes: &[u8]) -> Result<Self> {
        let mut fields = Vec::new();
        while bytes.has_remaining() {
            let (tag, wire) = decode_key(&mut bytes)?;
            let field = match wire {
                WireType::Varint => Field::Varint(decode_varint(&mut bytes)?),
                WireType::ThirtyTwoBit if bytes.len() >= 4 => {
                    Field::Four(bytes.get_u32_le().to_le_bytes())
                }
                WireType::SixtyFourBit if bytes.len() >= 8 => {
                    Field::Eight(bytes.get_u64_le().to_le_bytes())
                }
                WireType::LengthDelimited => {
                    let whole = bytes;
                    let mut ahead = bytes;
                    let length = decode_varint(&mut ahead)? as usize;
                    // Also checks the length.
                    skip_field(wire, tag, &mut bytes, DecodeContext::default())?;
                    let end = whole.len() - bytes.len();
                    Field::Bytes(whole[end - length..end].to_vec())
                }
                _ => {
                    skip_field(wire, tag, &mut bytes, DecodeContext::default())?;
                    continue;
                }
            };
            fields.push((tag, field));
        }
        Ok(Self(fields))
    }

    fn each(&self, tag: u32) -> impl Iterator<Item = &Field> {
        self.0
            .iter()
            .filter(move |(other, _)| *other == tag)
            .map(|(_, field)| field)
    }

    fn bytes(&self, tag: u32) -> impl Iterator<Item = &[u8]> {
        self.each(tag).filter_map(|field| match field {
            Field::Bytes(bytes) => Some(&bytes[..]),
            _ => None,
        })
    }

    fn messages<T>(&self, tag: u32, read: fn(&[u8]) -> Result<T>) -> Result<Vec<T>> {
        self.bytes(tag).map(read).collect()
    }

    fn texts(&self, tag: u32) -> Vec<String> {
        self.bytes(tag)
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect()
    }

    fn text(&self, tag: u32) -> String {
        self.texts(tag).pop().unwrap_or_default()
    }

    /// Integers, packed or not.
    fn ints(&self, tag: u32) -> Result<Vec<i64>> {
        let mut all = Vec::new();
        for field in self.each(tag) {
            match field {
                Field::Varint(value) => all.push(*value as i64),
                Field::Bytes(bytes) => {
                    let mut rest = &bytes[..];
                    while rest.has_remaining() {
                        all.push(decode_varint(&mut rest)? as i64);
                    }
                }
                Field::Four(_) | Field::Eight(_) => {}
            }
        }
        Ok(all)
    }

    /// Floats of so many bytes, packed or not.
    fn floats<const N: usize, T>(&self, tag: u32, read: fn([u8; N]) -> T) -> Vec<T> {
        let packed = self.each(tag).map(|field| match field {
            Field::Four(bytes) => &bytes[..],
            Field::Eight(bytes) => &bytes[..],
            Field::Bytes(bytes) => &bytes[..],
            Field::Varint(_) => &[],
        });
        packed
            .flat_map(|bytes| bytes.as_chunks::<N>().0.iter().map(|&bytes| read(bytes)))
            .collect()
    }
}

/// The graph of a `ModelProto`.
pub fn model(bytes: &[u8]) -> Result<Option<Graph>> {
    Ok(Fields::of(bytes)?.messages(7, graph)?.pop())
}

fn graph(bytes: &[u8]) -> Result<Graph> {
    let fields = Fields::of(bytes)?;
    Ok(Graph {
        nodes: fields.messages(1, node)?,
        initializers: fields.each(5).count(),
        inputs: fields.messages(11, value_info)?,
        outputs: fields.messages(12, value_info)?,
    })
}

fn value_info(bytes: &[u8]) -> Result<ValueInfo> {
    let fields = Fields::of(bytes)?;
    let kinds = fields.messages(2, Fields::of)?;
    Ok(ValueInfo {
        name: fields.text(1),
        is_tensor: kinds.iter().any(|kind| kind.each(1).next().is_some()),
    })
}

fn node(bytes: &[u8]) -> Result<Node> {
    let fields = Fields::of(bytes)?;
    Ok(Node {
        inputs: fields.texts(1),
        outputs: fields.texts(2),
        op: fields.text(4),
        attributes: fields.messages(5, attribute)?,
        domain: fields.text(7),
    })
}

fn attribute(bytes: &[u8]) -> Result<Attribute> {
    let fields = Fields::of(bytes)?;
    Ok(Attribute {
        name: fields.text(1),
        float: fields
            .floats(2, f32::from_le_bytes)
            .pop()
            .unwrap_or_default(),
        int: fields.ints(3)?.pop().unwrap_or_default(),
        text: fields.text(4),
        tensor: fields.messages(5, tensor)?.pop(),
        floats: fields.floats(7, f32::from_le_bytes),
        ints: fields.ints(8)?,
    })
}

/// A `TensorProto`.
pub fn tensor(bytes: &[u8]) -> Result<TensorData> {
    let fields = Fields::of(bytes)?;
    Ok(TensorData {
        dims: fields.ints(1)?,
        kind: fields.ints(2)?.pop().unwrap_or_default() as i32,
        floats: fields.floats(4, f32::from_le_bytes),
        small: fields.ints(5)?,
        ints: fields.ints(7)?,
        raw: fields.bytes(9).flatten().copied().collect(),
        doubles: fields.floats(10, f64::from_le_bytes),
    })
}
