use cudarc::driver::{result, sys};
use std::process::Command;
use xmem_cuda_standin::Machine;

#[test]
fn child() {
    if std::env::var_os("XMEM_STANDIN_CHILD").is_none() {
        return;
    }
    unsafe {
        assert!(sys::is_culib_present());
        result::init().unwrap();
        let mut ctx = std::ptr::null_mut();
        sys::cuDevicePrimaryCtxRetain(&mut ctx, 0).result().unwrap();
        sys::cuCtxPushCurrent_v2(ctx).result().unwrap();
        let p = result::malloc_sync(1 << 20).unwrap();
        result::memset_d8_sync(p, 7, 1 << 20).unwrap();
        let mut v = vec![0_u8; 1 << 20];
        result::memcpy_dtoh_sync(&mut v, p).unwrap();
        assert!(v.iter().all(|b| *b == 7));
        let mut module = std::ptr::null_mut();
        let ptx = std::ffi::CString::new(xmem_cuda_standin::PTX).unwrap();
        sys::cuModuleLoadData(&mut module, ptx.as_ptr().cast())
            .result()
            .unwrap();
        result::free_sync(p).unwrap();
    }
}

#[test]
fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new(dir.path().join("m"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env("XMEM_STANDIN_CHILD", "1");
    machine.prepare(&mut command);
    let child = command.spawn().unwrap();
    let id = child.id();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    eprintln!("{:?}", machine.calls(id));
    assert!(machine.calls(id)["cuMemAlloc_v2"] == 1);
}
