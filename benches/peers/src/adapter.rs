//! This program again, seeing one adapter only where that can be: what others pick by default is then the right one.

use std::process::Command;

use orlop::{Device, DeviceInfo, DeviceKind};

/// A process that sees `lavapipe` or `swiftshader` alone; with another selector all there is.
pub fn alone(device: &str) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    let driver = match device {
        "lavapipe" => ["lvp_icd.json", "lvp_icd.x86_64.json"]
            .map(|name| format!("/usr/share/vulkan/icd.d/{name}"))
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .ok_or_else(|| "lavapipe: source scripts/adapters.sh first".to_owned())?,
        "swiftshader" => std::env::var("VK_ADD_DRIVER_FILES")
            .map_err(|_| "swiftshader: source scripts/adapters.sh first".to_owned())?,
        _ => return Ok(command),
    };
    command
        .env_remove("VK_ADD_DRIVER_FILES")
        .env("VK_DRIVER_FILES", &driver)
        .env("VK_ICD_FILENAMES", driver)
        .env("WGPU_BACKEND", "vulkan");
    Ok(command)
}

/// The device that a selector means, unopened.
pub fn named(device: &str) -> Result<DeviceInfo, String> {
    let found = Device::builder().visible([device]).list();
    let found = found.map_err(|error| error.to_string())?.into_iter().next();
    found.ok_or_else(|| format!("there is no {device}"))
}

/// Whether `who`, that cannot be told an adapter, takes this one in a process from [`alone`]: the only GPU, or the
/// only adapter. Says so where not.
pub fn takes(who: &str, device: &str) -> Result<bool, String> {
    let all = Device::list().map_err(|error| error.to_string())?;
    let gpus = all.iter().filter(|info| info.kind().is_gpu()).count();
    // The others see what is hidden from orlop.
    let is_hidden = std::env::var_os("ORLOP_VISIBLE_DEVICES").is_some();
    let takes = match device {
        "lavapipe" | "swiftshader" => true,
        _ => match named(device)?.kind() {
            DeviceKind::Cpu => false,
            // It and the CPU.
            DeviceKind::Software => all.len() == 2 && !is_hidden,
            _ => gpus == 1 && !is_hidden,
        },
    };
    if !takes {
        eprintln!("without {who}, which cannot be told to take {device}");
    }
    Ok(takes)
}
