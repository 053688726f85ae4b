// The program's own passes. `colour` reads the heights as a storage buffer and paints a map;
// `vertex` gets the same memory as a vertex buffer, and `fragment` puts the map onto it.

struct View {
    to_clip: mat4x4<f32>,
    eye: vec3<f32>,
    // Vertices along each side of the height field.
    side: f32,
}

const SUN = vec3<f32>(-0.55, 0.5, 0.45);
const RELIEF = 0.22;
const HAZE = vec3<f32>(0.80, 0.87, 0.93);
const ZENITH = vec3<f32>(0.24, 0.47, 0.78);

@group(0) @binding(0) var<uniform> view: View;

// --- the compute pass ------------------------------------------------------------------------------------

@group(1) @binding(0) var<storage, read> heights: array<f32>;
@group(1) @binding(1) var map_out: texture_storage_2d<rgba8unorm, write>;

fn height_at(x: i32, y: i32) -> f32 {
    let last = i32(view.side) - 1;
    let at = clamp(vec2(x, y), vec2(0), vec2(last));
    return heights[at.y * i32(view.side) + at.x];
}

fn ground(height: f32, flat_: f32) -> vec3<f32> {
    var colour = mix(vec3(0.86, 0.79, 0.58), vec3(0.36, 0.55, 0.24), smoothstep(0.02, 0.10, height));
    colour = mix(colour, vec3(0.16, 0.36, 0.17), smoothstep(0.15, 0.45, height));
    colour = mix(colour, vec3(0.44, 0.40, 0.37), smoothstep(0.55, 0.95, height));
    colour = mix(colour, vec3(0.42, 0.38, 0.35), 0.8 * smoothstep(0.80, 0.55, flat_));
    return mix(colour, vec3(0.96, 0.97, 1.00), smoothstep(0.95, 1.20, height + 0.25 * (flat_ - 0.8)));
}

@compute @workgroup_size(8, 8)
fn colour(@builtin(global_invocation_id) id: vec3<u32>) {
    let side = u32(view.side);
    if id.x >= side || id.y >= side {
        return;
    }
    let x = i32(id.x);
    let y = i32(id.y);
    let height = height_at(x, y);
    let slope = RELIEF * 0.25 * view.side * vec2(
        max(height_at(x + 1, y), 0.0) - max(height_at(x - 1, y), 0.0),
        max(height_at(x, y + 1), 0.0) - max(height_at(x, y - 1), 0.0),
    );
    let normal = normalize(vec3(-slope.x, 1.0, -slope.y));
    let light = 0.38 + 0.72 * max(dot(normal, normalize(SUN)), 0.0);
    var tint: vec3<f32>;
    if height < 0.0 {
        tint = mix(vec3(0.30, 0.66, 0.68), vec3(0.05, 0.19, 0.38), smoothstep(0.0, 0.55, -height));
    } else {
        tint = light * ground(height, normal.y);
    }
    textureStore(map_out, vec2(x, y), vec4(tint, 1.0));
}

// --- the render pass -------------------------------------------------------------------------------------

@group(1) @binding(0) var map: texture_2d<f32>;
@group(1) @binding(1) var map_sampler: sampler;

struct Surface {
    @builtin(position) clip: vec4<f32>,
    @location(0) place: vec3<f32>,
    @location(1) on_map: vec2<f32>,
}

@vertex
fn vertex(@builtin(vertex_index) index: u32, @location(0) height: f32) -> Surface {
    let side = u32(view.side);
    let cell = vec2(f32(index % side), f32(index / side));
    let flat_ = cell / (view.side - 1.0);
    let place = vec3(2.0 * flat_.x - 1.0, RELIEF * max(height, 0.0), 2.0 * flat_.y - 1.0);
    return Surface(view.to_clip * vec4(place, 1.0), place, (cell + 0.5) / view.side);
}

@fragment
fn fragment(surface: Surface) -> @location(0) vec4<f32> {
    let ground = textureSample(map, map_sampler, surface.on_map).rgb;
    let distance = length(surface.place - view.eye);
    return vec4(mix(ground, HAZE, smoothstep(1.2, 4.2, distance)), 1.0);
}

struct Sky {
    @builtin(position) clip: vec4<f32>,
    @location(0) up: f32,
}

@vertex
fn sky_vertex(@builtin(vertex_index) index: u32) -> Sky {
    let corner = vec2(f32(index & 1u), f32(index >> 1u)) * 4.0 - 1.0;
    return Sky(vec4(corner, 1.0, 1.0), corner.y);
}

@fragment
fn sky_fragment(sky: Sky) -> @location(0) vec4<f32> {
    return vec4(mix(HAZE, ZENITH, smoothstep(0.25, 1.2, sky.up)), 1.0);
}
