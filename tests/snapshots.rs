//! Snapshots as files: JSON, PyTorch's pickle as Python reads it, the page.
#![cfg(feature = "snapshots")]

use std::io::Write;
use std::process::{Command, Stdio};

use orlop::memory::{
    BlockId, CallSite, Growth, MemorySnapshot, Move, Mover, Pool, PoolConfig, Refused,
    RegionSource, Request, Tag,
};
use serde_json::Value;

struct Source;

impl RegionSource for Source {
    type Region = ();

    fn create(&mut self, _bytes: u64) -> Result<(), Refused> {
        Ok(())
    }
}

struct Nothing;

impl Mover<()> for Nothing {
    fn move_block(&mut self, _moved: Move<'_, ()>) {}
}

/// A training run in miniature: weights that stay, activations that come and go, a leak, failures and
/// relocations under a budget.
fn run(steps: u64, most: usize) -> MemorySnapshot {
    const KIB: u64 = 1 << 10;
    let config = PoolConfig {
        growth: Growth::Proportional,
        limit: Some(24 << 20),
        max_region: 8 << 20,
    };
    let mut pool = Pool::new(Source, config);
    pool.record_history(most);
    let mut state = 7u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % end
    };
    let layers: Vec<Tag> = (0..6)
        .map(|layer| Tag::named(&format!("net/layer{layer}")))
        .collect();
    let take = |pool: &mut Pool<Source>, bytes, tag| {
        pool.allocate_moving(Request::new(bytes, tag), &mut Nothing)
            .ok()
    };
    for bytes in [900, 1300, 700] {
        take(&mut pool, bytes * KIB, Tag::named("weights"));
    }
    let leak = Tag::named("cache <of> \"steps\"");
    let mut live: Vec<BlockId> = Vec::new();
    for step in 0..steps {
        for &layer in &layers {
            live.extend(take(&mut pool, KIB * (50 + below(700)) + below(256), layer));
            if below(3) > 0
                && let Some(block) = live.pop()
            {
                pool.free(block);
            }
            live.extend(take(&mut pool, KIB * below(900), layer));
        }
        if step % (1 + steps / 20) == 0 {
            let block = take(&mut pool, 100 * KIB, leak);
            if let Some(block) = block {
                let site = CallSite::new("net::forward", "src/net.rs", 34);
                assert!(pool.set_call_site(block, site));
            }
        }
        while live.len() as u64 > below(44) {
            let at = below(live.len() as u64) as usize;
            pool.free(live.swap_remove(at));
        }
        if step % (1 + steps / 3) == 0 {
            take(&mut pool, 9 << 20, layers[0]);
        }
    }
    let snapshot = pool.snapshot();
    let events = snapshot.statistics.events;
    assert!(events.relocations > 0 && events.failures > 0);
    snapshot
}

#[test]
fn json_says_everything() {
    let snapshot = run(100, usize::MAX);
    let json: Value = serde_json::from_str(&snapshot.to_json()).expect("JSON");
    assert_eq!(json["statistics"]["reserved"], snapshot.statistics.reserved);
    let blocks = snapshot.statistics.counts.blocks;
    assert_eq!(json["statistics"]["counts"]["blocks"]["peak"], blocks.peak);
    let rows = |value: &Value| value.as_array().map_or(0, Vec::len);
    assert_eq!(rows(&json["history"]), snapshot.history.len());
    assert_eq!(rows(&json["tags"]), snapshot.tags.len());
    assert_eq!(rows(&json["regions"]), snapshot.regions.len());
    let region = &json["regions"][0];
    let chunks = region["chunks"].as_array().expect("chunks");
    let sum: u64 = chunks
        .iter()
        .filter_map(|chunk| chunk["bytes"].as_u64())
        .sum();
    assert_eq!(region["bytes"], sum);
    assert_eq!(chunks[0]["block"]["tag"], "weights");
}

/// What PyTorch's `_memory_viz` asks of the file, and that its sums hold.
const CHECK: &str = r#"
import pickle, sys
data = pickle.load(sys.stdin.buffer)
def check(value, kinds):
    assert set(value) == set(kinds), (sorted(value), sorted(kinds))
    for key, kind in kinds.items():
        assert type(value[key]) is kind, (key, value[key], kind)
check(data, dict(segments=list, device_traces=list, allocator_settings=dict, external_annotations=list))
def frames(value):
    for frame in value:
        check(frame, dict(name=str, filename=str, line=int))
reserved = allocated = requested = blocks = 0
for segment in data['segments']:
    check(segment, dict(device=int, address=int, total_size=int, allocated_size=int, active_size=int,
        requested_size=int, stream=int, segment_type=str, segment_pool_id=tuple, is_expandable=bool,
        frames=list, blocks=list))
    assert segment['segment_pool_id'] == (0, 0) and segment['segment_type'] == 'large'
    frames(segment['frames'])
    address = segment['address']
    active = asked = 0
    for block in segment['blocks']:
        check(block, dict(address=int, size=int, requested_size=int, state=str, frames=list))
        assert block['address'] == address and block['state'] in ('active_allocated', 'inactive')
        frames(block['frames'])
        address += block['size']
        if block['state'] == 'active_allocated':
            assert 0 <= block['requested_size'] <= block['size'] and block['frames']
            active += block['size']
            asked += block['requested_size']
            blocks += 1
    assert address == segment['address'] + segment['total_size']
    assert (active, active, asked) == (segment['allocated_size'], segment['active_size'], segment['requested_size'])
    reserved += segment['total_size']
    allocated += active
    requested += asked
actions = {}
assert len(data['device_traces']) == 1
live = {}
held = {}
for event in data['device_traces'][0]:
    action = event['action']
    actions[action] = actions.get(action, 0) + 1
    place = 'device_free' if action == 'oom' else 'addr'
    check(event, {'action': str, place: int, 'size': int, 'stream': int, 'time_us': int, 'frames': list})
    frames(event['frames'])
    if action == 'alloc':
        assert event['addr'] not in live
        live[event['addr']] = event['size']
    elif action == 'free_requested':
        assert live[event['addr']] == event['size']
    elif action == 'free_completed':
        del live[event['addr']]
    elif action == 'segment_alloc':
        held[event['addr']] = event['size']
    elif action == 'segment_free':
        assert held.pop(event['addr']) == event['size']
    else:
        assert action == 'oom', action
now = {block['address']: block['requested_size'] for segment in data['segments'] for block in segment['blocks']
    if block['state'] == 'active_allocated'}
assert now == live, 'the trace ends in what the segments hold'
assert held == {segment['address']: segment['total_size'] for segment in data['segments']}
settings = data['allocator_settings']
assert type(settings['expandable_segments']) is bool and type(settings['max_split_size']) is int
print(reserved, allocated, requested, blocks, actions['oom'])
"#;

#[test]
fn python_reads_the_pickle() {
    let snapshot = run(300, usize::MAX);
    let pickle = snapshot.to_pickle().expect("a pickle");
    let mut python = Command::new("python3")
        .args(["-c", CHECK])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there: scripts/adapters.sh installs it");
    let mut stdin = python.stdin.take().expect("a pipe");
    stdin.write_all(&pickle).expect("it reads");
    drop(stdin);
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success());
    let memory = snapshot.statistics;
    let expected = format!(
        "{} {} {} {} {}\n",
        memory.reserved,
        memory.allocated,
        memory.counts.requested_bytes.current,
        memory.live_blocks,
        memory.events.failures
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    write("snapshot.pickle", &pickle);
}

/// The page needs nothing else, and its data are the snapshot's. `scripts/page.sh` looks at it in a
/// browser.
#[test]
fn the_page_is_whole() {
    let snapshot = run(2000, usize::MAX);
    let page = snapshot.to_html();
    for elsewhere in ["http://", "https://", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    assert_eq!(
        page.matches("</script>").count(),
        2,
        "no name ends a script"
    );
    let data = page.split_once("<script id=\"data\" type=\"application/json\">");
    let data = data.and_then(|(_, rest)| rest.split_once("</script>"));
    let data: Value = serde_json::from_str(data.expect("the data").0).expect("JSON");
    let events = data["events"].as_array().expect("events");
    assert_eq!(events.len(), snapshot.history.len());
    let last = snapshot.history.last().expect("an event");
    assert_eq!(events[events.len() - 1][7], last.allocated);
    assert_eq!(events[events.len() - 1][8], last.reserved);
    let names = data["tagNames"].as_array().expect("names");
    assert!(names.iter().any(|name| name == "cache <of> \"steps\""));
    write("snapshot.html", page.as_bytes());
    write("large.html", run(6000, 100_000).to_html().as_bytes());
    write("bare.html", run(100, 0).to_html().as_bytes());
}

/// Keeps a file for whoever wants to look at it.
fn write(name: &str, bytes: &[u8]) {
    std::fs::write(
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name),
        bytes,
    )
    .expect("the target folder takes files");
}
