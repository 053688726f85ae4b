//! Runs like the recorded `llm_decode`: a language model (GPT-2) serves several requests at once, one
//! of them at a time, eagerly. Events are those that PyTorch makes: with the recorded model and the
//! recorded order of requests it is that trace, event for event (`tests/traces.rs`).

use super::{Random, Tape, rebuilt};
use crate::trace::Trace;

const FLOAT: u64 = 4;
const INTEGER: u64 = 8;

/// The model that serves.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub layers: u64,
    /// Features of a token: 64 for each head.
    pub width: u64,
    pub vocabulary: u64,
    /// The longest sequence.
    pub positions: u64,
    /// Sequences that one request asks for at once.
    pub batch: u64,
}

/// The recorded one.
pub const RECORDED: Model = Model {
    layers: 6,
    width: 384,
    vocabulary: 4096,
    positions: 1024,
    batch: 1,
};

/// What happens in one step, in this order.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// A request comes with a prompt of so many tokens.
    pub prompt: Option<u64>,
    /// Which of the requests under way is given up when the prompt has been read.
    pub given_up: Option<usize>,
    /// Which of the requests under way gets its next token, in order of coming.
    pub next: usize,
    /// It was the last one.
    pub ends: bool,
}

/// How requests come and go.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub steps: u64,
    /// Most requests under way.
    pub most: usize,
    /// Tokens of the shortest and of the longest prompt.
    pub prompts: [u64; 2],
    /// So many tokens does a request get in the mean.
    pub answer: u64,
}

/// Steps of a load: a request comes in one of four steps in which there is room for it; each step gives
/// one request a token.
fn steps(random: &mut Random, model: Model, load: Load) -> Vec<Step> {
    let mut lengths = Vec::new();
    let mut steps = Vec::new();
    for _ in 0..load.steps {
        let [shortest, longest] = load.prompts;
        let comes = lengths.is_empty() || lengths.len() < load.most && random.below(4) == 0;
        let prompt = comes.then(|| shortest + random.below(longest - shortest + 1));
        lengths.extend(prompt);
        let next = random.below(lengths.len() as u64) as usize;
        lengths[next] += 1;
        let ends = lengths[next] == model.positions || random.below(load.answer) == 0;
        if ends {
            lengths.remove(next);
        }
        steps.push(Step {
            prompt,
            given_up: None,
            next,
            ends,
        });
    }
    steps
}

/// The recorded model under other requests, of the recorded kind.
pub fn other_requests(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let load = Load {
        steps: 400,
        most: 6,
        prompts: [40, 300],
        answer: 130,
    };
    run(RECORDED, &steps(&mut random, RECORDED, load))
}

/// Other models, up to 12 requests at once.
pub fn other_models(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let model = Model {
        layers: 2 + random.below(11),
        width: 64 * (2 + random.below(11)),
        vocabulary: [1024, 4096, 8192, 16384, 32000, 50257][random.below(6) as usize],
        ..RECORDED
    };
    let load = Load {
        steps: 400,
        most: 2 + random.below(11) as usize,
        prompts: [16 + random.below(100), 128 + random.below(500)],
        answer: 30 + random.below(200),
    };
    run(model, &steps(&mut random, model, load))
}

/// Other models and batches, up to 24 requests at once, longer.
pub fn other_loads(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let layers = 2 + random.below(11);
    let model = Model {
        layers,
        width: 64 * (2 + random.below(15)),
        vocabulary: 1024 * (1 + random.below(32)),
        batch: [1, 1, 1, 2, 4][random.below(5) as usize],
        ..RECORDED
    };
    let shortest = 1 + random.below(200);
    let load = Load {
        // Runs of like numbers of events.
        steps: 3200 / layers,
        most: 1 + random.below(24) as usize,
        prompts: [shortest, shortest + random.below(400)],
        answer: 8 + random.below(150),
    };
    run(model, &steps(&mut random, model, load))
}

/// The run of a model in these steps.
pub fn run(model: Model, steps: &[Step]) -> Trace {
    let mut tape = Tape::default();
    let weights = model.weights(&mut tape);
    let mut serving = Serving {
        model,
        tape,
        requests: Vec::new(),
        prompt: None,
        last: None,
    };
    for &step in steps {
        if let Some(tokens) = step.prompt {
            serving.begin(tokens, step.given_up);
        }
        serving.decode(step.next, step.ends);
    }
    let Serving {
        mut tape, requests, ..
    } = serving;
    for block in weights
        .into_iter()
        .chain(requests.into_iter().flat_map(|request| request.caches))
    {
        tape.free(block);
    }
    rebuilt(tape.events.into_iter())
}

struct Request {
    /// The last token.
    token: usize,
    /// Positions in the caches.
    length: u64,
    /// Keys and values of each layer.
    caches: Vec<usize>,
}

struct Serving {
    model: Model,
    tape: Tape,
    requests: Vec<Request>,
    /// The tokens of the prompt that came last.
    prompt: Option<usize>,
    /// The logits of the last step, with the caches of the request when that was its last one.
    last: Option<(usize, Vec<usize>)>,
}

impl Model {
    /// Parameters in the order of construction.
    fn weights(&self, tape: &mut Tape) -> Vec<usize> {
        let row = self.width * FLOAT;
        let mut weights = vec![
            tape.allocate(self.vocabulary * row),
            tape.allocate(self.positions * row),
        ];
        for _ in 0..self.layers {
            let square = self.width * row;
            let sizes = [
                row,
                row,
                3 * square,
                3 * row,
                square,
                row,
                row,
                row,
                4 * square,
                4 * row,
                4 * square,
                row,
            ];
            weights.extend(sizes.map(|bytes| tape.allocate(bytes)));
        }
        weights.extend([row, row].map(|bytes| tape.allocate(bytes)));
        // The last layer's own, before it shares the embedding's.
        let untied = tape.allocate(self.vocabulary * row);
        tape.free(untied);
        weights
    }

    /// What PyTorch's attention works in, with one thread.
    fn attention_scratch(&self, tokens: u64, length: u64) -> u64 {
        let queries = match tokens {
            768.. => 256,
            192.. => 64,
            _ => 32,
        }
        .min(tokens);
        queries * (length.min(512) + 2 + 64) * FLOAT
    }
}

impl Serving {
    /// A prompt's first pass.
    fn begin(&mut self, tokens: u64, given_up: Option<usize>) {
        let prompt = self.tape.allocate(self.model.batch * tokens * INTEGER);
        if let Some(before) = self.prompt.replace(prompt) {
            self.tape.free(before);
        }
        let mut caches = Vec::new();
        self.forward(tokens, 0, &mut caches);
        let token = self.tape.allocate(self.model.batch * INTEGER);
        self.requests.push(Request {
            token,
            length: tokens,
            caches,
        });
        if let Some(at) = given_up {
            let gone = self.requests.remove(at);
            self.tape.free(gone.token);
            self.tape.free_all(last_layer_first(&gone.caches));
        }
    }

    /// One more token of a request.
    fn decode(&mut self, at: usize, ends: bool) {
        let mut caches = std::mem::take(&mut self.requests[at].caches);
        self.forward(1, self.requests[at].length, &mut caches);
        let request = &mut self.requests[at];
        request.caches = caches;
        request.length += 1;
        let token = self.tape.allocate(self.model.batch * INTEGER);
        self.tape.free(std::mem::replace(&mut request.token, token));
        if ends {
            let gone = self.requests.remove(at);
            self.tape.free(gone.token);
            if let Some((_, held)) = &mut self.last {
                // The output holds them until there is another one.
                held.extend(last_layer_first(&gone.caches));
            }
        }
    }

    /// The model for `tokens` tokens after `length` in the caches.
    fn forward(&mut self, tokens: u64, length: u64, caches: &mut Vec<usize>) {
        let model = self.model;
        let rows = model.batch * tokens;
        let features = rows * model.width * FLOAT;
        let tape = &mut self.tape;
        let embedded = tape.allocate(features);
        let range = tape.allocate(tokens * INTEGER);
        let past = tape.allocate(INTEGER);
        let places = tape.allocate(tokens * INTEGER);
        tape.free_all([past, range]);
        let placed = tape.allocate(features);
        let mut hidden = tape.allocate(features);
        for layer in 0..model.layers as usize {
            let normal = normalised(tape, features, rows);
            let joined = tape.allocate(3 * features);
            for at in [2 * layer, 2 * layer + 1] {
                let whole = model.batch * (length + tokens) * model.width * FLOAT;
                let grown = tape.allocate(whole);
                match caches.get_mut(at) {
                    Some(cache) => tape.free(std::mem::replace(cache, grown)),
                    None => caches.push(grown),
                }
            }
            let attended = tape.allocate(features);
            let sums = tape.allocate(rows * model.width / 64 * FLOAT);
            let scratch = tape.allocate(model.attention_scratch(tokens, length + tokens));
            tape.free_all([scratch, sums]);
            let projected = tape.allocate(features);
            tape.free_all([attended, joined]);
            let sum = tape.allocate(features);
            tape.free(normal);
            let normal = normalised(tape, features, rows);
            let active = gelu(tape, 4 * features);
            let narrow = tape.allocate(features);
            tape.free(active);
            let next = tape.allocate(features);
            tape.free_all([normal, sum, projected, narrow, hidden]);
            hidden = next;
        }
        let normal = normalised(tape, features, rows);
        tape.free_all([hidden, places, embedded, placed]);
        let logits = tape.allocate(rows * model.vocabulary * FLOAT);
        tape.free(normal);
        if let Some((before, caches)) = self.last.replace((logits, Vec::new())) {
            tape.free(before);
            tape.free_all(caches);
        }
    }
}

fn last_layer_first(caches: &[usize]) -> impl Iterator<Item = usize> {
    caches.chunks(2).rev().flatten().copied()
}

/// Layer normalisation, with the means and the spreads of its rows.
fn normalised(tape: &mut Tape, bytes: u64, rows: u64) -> usize {
    let normal = tape.allocate(bytes);
    let moments = [(); 2].map(|()| tape.allocate(rows * FLOAT));
    tape.free_all(moments);
    normal
}

/// `0.5 * x * (1 + tanh(0.79 * (x + 0.045 * x^3)))` as one op after the other, `x` included.
fn gelu(tape: &mut Tape, bytes: u64) -> usize {
    let x = tape.allocate(bytes);
    let half = scaled(tape, bytes);
    let cubed = tape.allocate(bytes);
    let small = scaled(tape, bytes);
    tape.free(cubed);
    let sum = tape.allocate(bytes);
    tape.free(small);
    let argument = scaled(tape, bytes);
    tape.free(sum);
    let tanh = tape.allocate(bytes);
    tape.free(argument);
    let plus_one = scaled(tape, bytes);
    tape.free(tanh);
    let product = tape.allocate(bytes);
    tape.free_all([half, plus_one, x]);
    product
}

/// A tensor with a number: the number becomes a tensor of each type on its way.
fn scaled(tape: &mut Tape, bytes: u64) -> usize {
    let wide = tape.allocate(8);
    let narrow = tape.allocate(4);
    let result = tape.allocate(bytes);
    tape.free_all([narrow, wide]);
    result
}
