//! Elementwise expressions on the CPU: in blocks that stay in the nearest cache, each node a loop that
//! vectorises, or chains of nodes one loop.

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};
use smallvec::SmallVec;

use super::apply::{Operands, Values, apply};
use super::bits::by_bits;
use super::chain::{self, Chain, Elements, Role, Source, at_once, is_computed, roles};
use super::convert::convert;
use super::expression::{Expression, Node, Types};
use super::function::Kind;
use super::lanes::Lanes;
use super::rows::{by_rows, is_one};
use super::tiles::{Tile, Tiles};
use super::walked::{APART, Register, Walked, gather, is_narrow, widen};
use crate::cpu::parallel::{self, Walk};
use crate::cpu::stores::{AHEAD, Stores, read_ahead};
use crate::cpu::transpose::Transposed;
use crate::cpu::{self, narrow};
use crate::dtype::{DType, ElementBytes, by_size};
use crate::road::{HostInput, HostOutput};

/// Elements of a block.
pub(super) const BLOCK: usize = 1024;

/// Elements that the nearest caches do not hold.
const MANY: usize = 64 << 10;

/// Writes the output: a new one, or one that an expression of its old elements goes into.
pub(super) fn evaluate(
    expression: &Expression,
    types: &Types,
    numbers: &[ElementBytes],
    inputs: &[HostInput<'_>],
    output: &mut HostOutput<'_>,
) {
    let (layout, size) = (output.layout, output.dtype.size());
    if layout.is_contiguous() {
        let first = layout.offset() * size;
        let range = first..first + layout.elements() * size;
        let Some(out) = output.bytes.get_mut(range) else {
            return;
        };
        if layout.elements() <= BLOCK && at_once(expression, numbers, inputs, output.dtype, out) {
            return;
        }
        if by_bits(expression, inputs, output.dtype, out)
            || by_rows(expression, types, numbers, inputs, out)
        {
            return;
        }
        let copied = turned_first(expression, inputs, output.dtype, out);
        let expression = copied.as_ref().unwrap_or(expression);
        let most = BLOCK.min(layout.elements());
        let machine = |tile| Machine::new(expression, types, numbers, inputs, most, tile);
        if let Some(tiles) = Tiles::of(inputs, |input| reads(expression, input)) {
            return tiles.share(out, size, |first, out| {
                machine(Some(Tile::new(&tiles))).tiles(&tiles, first, size, out);
            });
        }
        let stores = stores(expression, out.len());
        parallel::elements(out, size, |from, piece| {
            let mut machine = machine(None);
            // Where nothing is kept between nodes, in one block.
            let length = match machine.registers.is_empty() && machine.walked.is_empty() {
                true => piece.len().max(size) / size,
                false => BLOCK,
            };
            stores.write(piece, BLOCK * size, |first, piece| {
                for (at, block) in piece.chunks_mut(length * size).enumerate() {
                    machine.block(from + first / size + at * length, block);
                }
            });
        });
        return;
    }
    // Through strides: a block's old elements are gathered, and its new ones go where they were.
    let walk = Walk::new(&[layout]);
    by_size!(output.dtype, Bits => {
        let elements: &mut [Bits] = cast_slice_mut(output.bytes);
        parallel::through(layout, elements, |places, base, elements| {
            let most = BLOCK.min(places.len());
            let mut machine = Machine::new(expression, types, numbers, inputs, most, None);
            let mut block: Register = vec![0; most];
            for from in places.clone().step_by(BLOCK) {
                let count = BLOCK.min(places.end - from);
                let block = &mut cast_slice_mut(&mut block)[..count * size];
                through(&walk, (elements, base), from, block, |block| machine.block(from, block));
            }
        });
    });
}

/// Rows and columns of a matrix from which on it pays to turn it by itself: many small ones are faster by tiles.
const LARGE: usize = 1024;

fn reads(expression: &Expression, input: usize) -> bool {
    let is_it = |node: &Node| matches!(*node, Node::Input(of) if usize::from(of) == input);
    expression.nodes.iter().any(is_it)
}

/// Copies an input that lies transposed into an output that no cache keeps, as fast as memory is, and gives the expression of
/// what the output holds then: by tiles twice the time.
fn turned_first(
    expression: &Expression,
    inputs: &[HostInput<'_>],
    dtype: DType,
    out: &mut [u8],
) -> Option<Expression> {
    if !Stores::scattered(out.len()).are_streaming() || expression.nodes.contains(&Node::Old) {
        return None;
    }
    let (turned, input, way) = inputs.iter().enumerate().find_map(|(at, input)| {
        let is_read = input.dtype == dtype && reads(expression, at);
        let way = is_read
            .then(|| Transposed::by_rows(input.layout))
            .flatten()?;
        let is_large = way.rows() >= LARGE && way.columns() >= LARGE;
        is_large.then_some((at, input, way))
    })?;
    by_size!(dtype, Bits => way.copy::<Bits>(cast_slice(input.bytes), cast_slice_mut(out)));
    let renamed = |node: &Node| match *node {
        Node::Input(of) if usize::from(of) == turned => Node::Old,
        node => node,
    };
    Some(Expression {
        nodes: expression.nodes.iter().map(renamed).collect(),
    })
}

/// Whether computing takes no longer than memory does: streaming stores of a block wait for each other, and nothing is
/// computed meanwhile.
fn is_light(expression: &Expression) -> bool {
    expression.nodes.iter().all(|node| match *node {
        Node::Apply(function, _) => chain::is_plain(function),
        Node::Input(_) | Node::Scalar(_) => true,
        // Casts, and what the output holds, which is read.
        Node::Cast(..) | Node::Old => false,
    })
}

/// The way of a result of so many bytes.
pub(super) fn stores(expression: &Expression, bytes: usize) -> Stores {
    match is_light(expression) {
        true => Stores::of(bytes),
        false => Stores::Plain,
    }
}

/// Changes elements of a view in a block of their own.
fn through<T: bytemuck::Pod>(
    walk: &Walk,
    (elements, base): (&mut [T], usize),
    from: usize,
    block: &mut [u8],
    change: impl FnOnce(&mut [u8]),
) {
    gather(walk, (elements, base), from, cast_slice_mut(block));
    change(block);
    let block: &[T] = cast_slice(block);
    walk.blocks(from, block.len(), &mut |part| {
        let to = part.grids[0].after(base);
        cpu::copy_block(part, (block, part.in_order()), (elements, to));
    });
}

/// Where a node's values are.
#[derive(Clone, Copy)]
enum Location {
    /// In the input itself, from its first element on.
    Straight(usize),
    /// In the tile of an input.
    Tile(usize),
    Register(usize),
    /// As an input that is walked has them.
    Walked(usize),
    /// One number for all elements, which chains alone read: of their type.
    Number(f64),
    /// In the output, which the chain that alone reads it overwrites.
    Old,
    /// In the output or in a chain, which nothing reads again.
    Output,
}

/// Evaluates block by block on one thread.
struct Machine<'a> {
    expression: &'a Expression,
    types: &'a Types,
    roles: SmallVec<[Role; 8]>,
    inputs: &'a [HostInput<'a>],
    tile: Option<Tile<'a>>,
    /// Of inputs that are read neither straight nor by tiles.
    walked: Vec<Walked<'a>>,
    places: SmallVec<[Location; 6]>,
    /// Elements of a block at most, which registers hold.
    most: usize,
    registers: Vec<Register>,
    /// How far ahead of what is read straight memory is asked for.
    ahead: usize,
}

impl<'a> Machine<'a> {
    fn new(
        expression: &'a Expression,
        types: &'a Types,
        numbers: &[ElementBytes],
        inputs: &'a [HostInput<'a>],
        most: usize,
        tile: Option<Tile<'a>>,
    ) -> Self {
        let is_much = inputs.iter().any(|input| input.layout.elements() > MANY);
        let mut machine = Self {
            expression,
            types,
            roles: roles(expression, types),
            inputs,
            tile,
            walked: Vec::new(),
            places: SmallVec::new(),
            most,
            registers: Vec::new(),
            ahead: if is_much { AHEAD } else { 0 },
        };
        // Registers that serve again, and those that a chain reads until its end.
        let (mut free, mut held) = (Vec::new(), Vec::new());
        let last = expression.nodes.len().saturating_sub(1);
        for (at, (node, &dtype)) in expression.nodes.iter().zip(types).enumerate() {
            let place = match *node {
                Node::Input(input) => machine.input(at, usize::from(input), dtype),
                Node::Scalar(number) => {
                    let value = numbers.get(usize::from(number));
                    let bytes = value.map_or(&[][..], ElementBytes::as_slice);
                    machine.number(at, dtype, bytes)
                }
                Node::Old if machine.is_read_at_last(at) => Location::Old,
                Node::Old => Location::Register(machine.register()),
                Node::Apply(..) if machine.roles[at] == Role::Flows => Location::Output,
                // Computed straight into the output.
                Node::Apply(..) | Node::Cast(..) if at == last && !is_narrow(dtype) => {
                    Location::Output
                }
                Node::Apply(..) | Node::Cast(..) => {
                    Location::Register(free.pop().unwrap_or_else(|| machine.register()))
                }
            };
            machine.places.push(place);
            // Registers of values that nothing reads any more serve again.
            let reads = node.reads();
            for (index, &read) in reads.iter().enumerate() {
                let source = usize::from(read);
                if let Location::Register(register) = machine.places[source]
                    && is_computed(&expression.nodes[source])
                    && !reads[..index].contains(&read)
                    && !expression.reads_after(at, source)
                {
                    held.push(register);
                }
            }
            if is_computed(node) && machine.roles[at] != Role::Flows {
                free.append(&mut held);
            }
        }
        machine
    }

    /// Whether none but the chain that the output is of reads a node that is of the output's type, not widened.
    fn is_read_at_last(&self, node: usize) -> bool {
        let start = match self.roles.last() {
            Some(Role::Ends(start)) => usize::from(*start),
            _ => return false,
        };
        let mut others = self.expression.nodes[..start].iter();
        !is_narrow(self.types[node])
            && !others.any(|other| other.reads().iter().any(|&read| usize::from(read) == node))
    }

    fn register(&mut self) -> usize {
        self.registers.push(vec![0; self.most + APART]);
        self.registers.len() - 1
    }

    /// Where an input is read from; one value for all elements is spread here, once.
    fn input(&mut self, node: usize, input: usize, dtype: DType) -> Location {
        let operand = &self.inputs[input];
        if operand.layout.is_contiguous() && !is_narrow(dtype) {
            return Location::Straight(input);
        }
        if is_one(operand.layout) {
            let first = operand.layout.offset() * dtype.size();
            let bytes = operand.bytes.get(first..first + dtype.size());
            return self.number(node, dtype, bytes.unwrap_or_default());
        }
        let is_in_tile = self.tile.as_ref().is_some_and(|tile| tile.has(input));
        if is_in_tile && !is_narrow(dtype) {
            return Location::Tile(input);
        }
        if is_in_tile || operand.layout.is_contiguous() {
            return Location::Register(self.register());
        }
        self.walked.push(Walked::new(operand, self.most));
        Location::Walked(self.walked.len() - 1)
    }

    /// One element for all: itself where chains alone read it, else in a register's every place.
    fn number(&mut self, node: usize, dtype: DType, element: &[u8]) -> Location {
        let single = match dtype {
            DType::F16 => Some(f16::from_bits(bits16(element)).to_f32()),
            DType::BF16 => Some(bf16::from_bits(bits16(element)).to_f32()),
            DType::F32 => element.try_into().ok().map(f32::from_ne_bytes),
            _ => None,
        };
        let float = match dtype {
            DType::F64 => element.try_into().ok().map(f64::from_ne_bytes),
            _ => single.map(f64::from),
        };
        let mut later = self.expression.nodes.iter().zip(&self.roles).skip(node + 1);
        let is_of_chains = later.all(|(other, role)| {
            *role != Role::Alone || other.reads().iter().all(|&read| usize::from(read) != node)
        });
        let is_result = node + 1 == self.expression.nodes.len();
        if let (Some(float), true, false) = (float, is_of_chains, is_result) {
            return Location::Number(float);
        }
        let wide = single.map(f32::to_ne_bytes);
        let element = wide.as_ref().map_or(element, |wide| &wide[..]);
        let register = self.register();
        self.spread(register, element);
        Location::Register(register)
    }

    /// Fills a register with one element.
    fn spread(&mut self, register: usize, element: &[u8]) {
        let register = &mut self.registers[register];
        match element.len() {
            8 => fill_with::<u64>(register, element),
            4 => fill_with::<u32>(register, element),
            _ => fill_with::<u8>(register, element),
        }
    }

    /// Computes elements from `from` on, as many as `out` holds.
    fn block(&mut self, from: usize, out: &mut [u8]) {
        let last = self.expression.nodes.len() - 1;
        let dtype = self.types[last];
        let count = out.len() / dtype.size();
        for at in 0..=last {
            match self.expression.nodes[at] {
                Node::Input(input) => self.load(at, usize::from(input), from, count),
                Node::Old => self.keep(at, out),
                Node::Scalar(_) => {}
                Node::Apply(..) | Node::Cast(..) => {
                    if at == last && !is_narrow(dtype) {
                        self.compute(at, from, count, out);
                        return;
                    }
                    if let Location::Register(register) = self.places[at] {
                        let mut target = std::mem::take(&mut self.registers[register]);
                        let bytes: &mut [u8] = cast_slice_mut(&mut target);
                        let bytes = &mut bytes[..count * Kind::of(self.types[at]).bytes()];
                        self.compute(at, from, count, bytes);
                        self.registers[register] = target;
                    }
                }
            }
        }
        let values = self.values(last, from, count);
        match dtype {
            DType::F16 => narrow::round::<f16>(cast_slice(values), cast_slice_mut(out)),
            DType::BF16 => narrow::round::<bf16>(cast_slice(values), cast_slice_mut(out)),
            _ => out.copy_from_slice(values),
        }
    }

    /// The values of a node in this block.
    fn values(&self, node: usize, from: usize, count: usize) -> &[u8] {
        let dtype = self.types[node];
        match self.places[node] {
            Location::Straight(input) => {
                let operand = &self.inputs[input];
                operand.bytes_of(operand.layout.offset() + from, count)
            }
            Location::Walked(at) => self.walked[at].values(from, count),
            Location::Tile(input) => {
                let tile = self.tile.as_ref();
                tile.map_or(&[], |tile| tile.values(input, from, count, dtype.size()))
            }
            Location::Number(_) | Location::Old | Location::Output => &[],
            Location::Register(register) => {
                let bytes: &[u8] = cast_slice(&self.registers[register]);
                &bytes[..count * Kind::of(dtype).bytes()]
            }
        }
    }

    /// Computes whole bands, the first of which begins with the `first` element, tile by tile.
    fn tiles(&mut self, tiles: &Tiles, first: usize, size: usize, out: &mut [u8]) {
        let mut at = first;
        while at < first + out.len() / size {
            for place in tiles.places() {
                let Some(tile) = &mut self.tile else { return };
                tile.turn(self.inputs, at, place);
                for (from, count) in tile.runs(BLOCK) {
                    let start = (from - first) * size;
                    self.block(from, &mut out[start..start + count * size]);
                }
            }
            at += tiles.band(at);
        }
    }

    /// Gathers and widens an input's elements that are not read straight.
    fn load(&mut self, node: usize, input: usize, from: usize, count: usize) {
        let register = match self.places[node] {
            Location::Walked(at) => return self.walked[at].load(from, count),
            Location::Register(register) => register,
            _ => return,
        };
        let (operand, dtype) = (&self.inputs[input], self.types[node]);
        let elements = match &self.tile {
            Some(tile) if tile.has(input) => tile.values(input, from, count, dtype.size()),
            _ if operand.layout.is_contiguous() => {
                let elements = operand.bytes_of(operand.layout.offset() + from, count);
                read_ahead(elements, self.ahead);
                elements
            }
            // One value, spread at the start.
            _ => return,
        };
        widen(
            dtype,
            elements,
            cast_slice_mut(&mut self.registers[register]),
        );
    }

    /// Keeps what the output holds, before it is overwritten.
    fn keep(&mut self, node: usize, out: &[u8]) {
        if let Location::Register(register) = self.places[node] {
            let dtype = self.types[node];
            let target: &mut [u8] = cast_slice_mut(&mut self.registers[register]);
            match is_narrow(dtype) {
                true => widen(dtype, out, cast_slice_mut(target)),
                false => target[..out.len()].copy_from_slice(out),
            }
        }
    }

    /// A node that is neither input nor number, with those that flow into it.
    fn compute(&self, at: usize, from: usize, count: usize, out: &mut [u8]) {
        if let Role::Ends(start) = self.roles[at] {
            return match Kind::of(self.types[at]) {
                Kind::F64 => {
                    let chain = self.chain(usize::from(start), at, from, count, |number| number);
                    chain.run(cast_slice_mut(out));
                }
                _ => {
                    let chain =
                        self.chain(usize::from(start), at, from, count, |number| number as f32);
                    chain.run(cast_slice_mut(out));
                }
            };
        }
        let node = self.expression.nodes[at];
        let mut values = Operands::default();
        for (values, &read) in values.iter_mut().zip(node.reads()) {
            let read = usize::from(read);
            let comes_from_memory = matches!(self.places[read], Location::Straight(_));
            *values = Values {
                bytes: self.values(read, from, count),
                ahead: if comes_from_memory { self.ahead } else { 0 },
            };
        }
        match node {
            Node::Apply(function, operands) => {
                let of = self.types[usize::from(operands[function.first_alike()])];
                apply(function, Kind::of(of), values, out);
            }
            Node::Cast(to, source) => {
                convert(self.types[usize::from(source)], to, values[0].bytes, out);
                // The last one's are rounded when they are stored.
                match to {
                    _ if at + 1 == self.expression.nodes.len() => {}
                    DType::F16 => narrow::round_in_place::<f16>(cast_slice_mut(out)),
                    DType::BF16 => narrow::round_in_place::<bf16>(cast_slice_mut(out)),
                    _ => {}
                }
            }
            Node::Input(_) | Node::Old | Node::Scalar(_) => {}
        }
    }

    /// The functions of nodes from `start` to `end`, on what they read in this block; numbers of their type are exact.
    fn chain<T: Lanes + bytemuck::Pod>(
        &self,
        start: usize,
        end: usize,
        from: usize,
        count: usize,
        narrowed: impl Fn(f64) -> T,
    ) -> Chain<'_, T> {
        let mut chain = Chain::new();
        for at in start..=end {
            let node = self.expression.nodes[at];
            let Node::Apply(function, _) = node else {
                continue;
            };
            let mut sources = [None; 3];
            for (source, &read) in sources.iter_mut().zip(node.reads()) {
                let read = usize::from(read);
                *source = match self.places[read] {
                    _ if self.roles[read] == Role::Flows => None,
                    Location::Number(number) => Some(Source::Number(narrowed(number))),
                    Location::Old => Some(Source::Values(Elements::Old)),
                    _ => {
                        let values = cast_slice(self.values(read, from, count));
                        Some(Source::Values(Elements::InOrder(values)))
                    }
                };
            }
            chain.push(function, sources);
        }
        chain
    }
}

/// One element in all places of a block.
fn fill_with<T: bytemuck::Pod>(register: &mut Register, element: &[u8]) {
    let count = register.len() - APART;
    let places: &mut [T] = cast_slice_mut(register);
    if let Ok(element) = bytemuck::try_pod_read_unaligned(element) {
        places[..count].fill(element);
    }
}

fn bits16(element: &[u8]) -> u16 {
    element.try_into().map_or(0, u16::from_ne_bytes)
}
