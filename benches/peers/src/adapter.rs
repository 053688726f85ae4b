//! This program again, seeing one adapter only: what others pick by default is then the right one.

use std::process::Command;

/// A process that sees `lavapipe`, `swiftshader` or all there is alone.
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
