// SPDX-License-Identifier: MPL-2.0

//! Access to a pool by processes of other users and groups.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use support::child::{self, Child, read_line, reply};
use support::raw::Raw;
use support::users::{OWNER, STRANGER, User, can_be_others, program_for_all, set_mode};
use support::*;
use xmem_core::discovery::query;
use xmem_core::{
    Backing, ConnectError, Consumer, ConsumerSet, CreateError, Delivery, Producer, ProducerBuilder,
    ReadyFd, StartFrom,
};

const SIZE: usize = 100_000;

/// It needs no name on the system.
const GROUP: u32 = 42_200;
const ROOT: u32 = 0;

/// Runs a role in a child process.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["produce", mode, group, uids] => produce(&pool, mode, group, uids),
        ["produce-posix-shm"] => serve(Producer::builder(&pool).backing(Backing::PosixShm).build()),
        ["join"] => join(&pool),
        ["wait"] => wait(&pool),
        ["ask"] => ask(&pool),
        ["take", way] => take(&pool, way),
        ["owner"] => {
            let consumer = Consumer::builder(&pool).connect_wait(Some(HANG));
            reply(format!("{:?}", consumer.map(|it| it.producer_uid())));
        }
        _ => panic!("no role {role}"),
    }
}

/// Creates a pool with these settings ("-": default), and publishes a frame.
fn produce(pool: &str, mode: &str, group: &str, uids: &str) {
    let set = |text: &str| (text != "-").then(|| text.to_owned());
    let mut builder = Producer::builder(pool).socket_group(set(group));
    if let Some(mode) = set(mode) {
        builder = builder.socket_mode(u32::from_str_radix(&mode, 8).unwrap());
    }
    let uids = set(uids).map(|uids| uids.split(',').map(|uid| uid.parse().unwrap()).collect());
    serve(builder.allow_uids(uids.unwrap_or_default()).build());
}

fn serve(producer: Result<Producer, CreateError>) {
    match producer {
        Err(error) => reply(error),
        Ok(producer) => {
            publish(&producer, 1, SIZE);
            reply("ready");
            read_line();
        }
    }
}

/// Reports whether this process can join and read.
fn join(pool: &str) {
    let consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect();
    reply(match consumer {
        Ok(mut consumer) => {
            assert_whole(&receive(&mut consumer));
            "joined".into()
        }
        Err(ConnectError::Denied { .. }) => "denied".into(),
        Err(ConnectError::Refused { reason, .. }) => format!("refused: {reason}"),
        Err(error) => format!("error: {error}"),
    });
    assert_eq!(
        query(pool).is_ok(),
        Consumer::builder(pool).connect().is_ok()
    );
}

/// Reports that access is denied, and the result of a wait for the producer.
fn wait(pool: &str) {
    let consumer = Consumer::builder(pool);
    reply(match consumer.connect() {
        Err(ConnectError::Denied { .. }) => "denied".into(),
        other => format!("{other:?}"),
    });
    reply(match consumer.connect_wait(None) {
        Ok(_) => "joined".into(),
        Err(error) => error.to_string(),
    });
}

/// The number of frames for a consumer of another user.
const FRAMES: u64 = 500;

/// Takes all frames, and waits for each in this way.
fn take(pool: &str, way: &str) {
    let consumer = || Consumer::builder(pool).connect().unwrap();
    match way {
        "descriptor" => {
            let mut consumer = consumer();
            consumer.notify(&ReadyFd::new().unwrap()).unwrap();
            reply("ready");
            for seed in 0..FRAMES {
                assert_frame(&receive(&mut consumer), seed, SIZE);
            }
        }
        "set" => {
            let mut set = ConsumerSet::new().unwrap();
            set.add(consumer()).unwrap();
            reply("ready");
            for seed in 0..FRAMES {
                let frame = loop {
                    let (_, consumer) = set.wait(Some(HANG)).next().expect("a frame");
                    if let Ok(frame) = consumer.receive(Some(Duration::ZERO)) {
                        break frame;
                    }
                };
                assert_frame(&frame, seed, SIZE);
            }
        }
        way => panic!("no way {way}"),
    }
    reply("all");
}

/// Reports what a producer sends before it refuses a connection.
fn ask(pool: &str) {
    let raw = Raw::connect(pool);
    // A user with access must send a request first.
    let (bytes, descriptors) = raw.recv().expect("an answer");
    reply(format!(
        "{} with {} descriptors",
        bytes[0],
        descriptors.len()
    ));
    assert!(raw.recv().is_none());
}

/// A directory that all users can enter, with a pool of one user.
struct Scene {
    place: Place,
    program: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        let program = program_for_all(place.path());
        let scene = Self { place, program };
        // Only the producer can write to it.
        scene.give_to(OWNER, OWNER, 0o755);
        scene
    }

    fn give_to(&self, uid: u32, gid: u32, mode: u32) {
        std::os::unix::fs::chown(self.place.path(), Some(uid), Some(gid)).unwrap();
        set_mode(self.place.path(), mode);
    }

    fn start(&self, user: &User, role: &str) -> Child {
        user.start(&self.program, role, &self.place.pool())
    }

    /// The reply of a process of this user.
    fn reply_of(&self, user: &User, role: &str) -> String {
        let mut child = self.start(user, role);
        let reply = child.reply();
        assert!(child.end(), "{user:?}");
        reply
    }

    fn produce(&self, user: &User, role: &str) -> Child {
        let mut producer = self.start(user, role);
        assert_eq!(producer.reply(), "ready", "{role}");
        producer
    }
}

/// Settings, and the users that get access besides the producer's user and root.
fn admits(settings: &str, welcome: &[User], refused: &[User], denied: &[User]) {
    if !can_be_others() {
        return;
    }
    let scene = Scene::new();
    let owner = User::in_groups(OWNER, OWNER, &[GROUP]);
    let producer = scene.produce(&owner, &format!("produce {settings}"));
    for user in [&[owner, User::new(ROOT)], welcome].concat() {
        assert_eq!(
            scene.reply_of(&user, "join"),
            "joined",
            "{settings}: {user:?}"
        );
    }
    for user in refused {
        let reply = scene.reply_of(user, "join");
        assert!(
            reply.starts_with("refused: ") && reply.contains("allow-uids"),
            "{settings}: {user:?}: {reply}"
        );
        // Refused before anything is shared.
        assert_eq!(scene.reply_of(user, "ask"), "2 with 0 descriptors");
    }
    for user in denied {
        assert_eq!(
            scene.reply_of(user, "join"),
            "denied",
            "{settings}: {user:?}"
        );
    }
    assert!(producer.end());
}

fn stranger() -> User {
    User::new(STRANGER)
}

/// A user whose main group is this one.
fn member(gid: u32) -> User {
    User::in_groups(42_103, gid, &[])
}

/// A user with this group as an additional one.
fn also_member(gid: u32) -> User {
    User::in_groups(42_104, 42_104, &[42_300, gid, 42_301])
}

/// The owner can enter the runtime directory and open the files, whatever the umask was when they were made.
#[test]
fn a_umask_does_not_exclude_the_owner() {
    let place = Place::new();
    let dir = place.path().join("made/here");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "umask 0777; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .env("XMEM_RUNTIME_DIR", &dir);
    let _producer = Child::from(shell, "produce - - -", "p").ready();
    for (path, mode) in [
        (place.path().join("made"), 0o700),
        (dir.clone(), 0o700),
        (dir.join("p.lock"), 0o600),
    ] {
        let permissions = std::fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, mode, "{path:?}");
    }
}

/// The socket's file is created before its mode and group are set.
#[test]
fn a_wait_outlasts_the_start_of_a_producer() {
    if !can_be_others() {
        return;
    }
    let scene = Scene::new();
    let producer = scene.produce(&User::new(OWNER), "produce 666 - -");
    let chmod = |mode| set_mode(scene.place.pool().as_ref(), mode);
    // Before the consumer's first attempt.
    chmod(0o600);
    let mut consumer = scene.start(&stranger(), "wait");
    let denied = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !denied.load(Relaxed) {
                // The file's change time stays recent.
                chmod(0o600);
                std::thread::sleep(Duration::from_millis(20));
            }
            chmod(0o666);
        });
        assert_eq!(consumer.reply(), "denied");
        denied.store(true, Relaxed);
    });
    assert_eq!(consumer.reply(), "joined");
    assert!(consumer.end());

    chmod(0o600);
    let mut consumer = scene.start(&stranger(), "wait");
    assert_eq!(consumer.reply(), "denied");
    let end = consumer.reply();
    assert_contains(&end, "socket-mode");
    assert!(consumer.end() && producer.end());
}

#[test]
fn by_default_other_users_are_denied() {
    let denied = [
        stranger(),
        member(OWNER),
        also_member(OWNER),
        member(GROUP),
        // In root's group only.
        member(ROOT),
    ];
    admits("- - -", &[], &[], &denied);
}

#[test]
fn a_mode_for_the_group_admits_the_producers_group() {
    let welcome = [member(OWNER), also_member(OWNER)];
    let denied = [stranger(), member(GROUP), also_member(GROUP)];
    admits("660 - -", &welcome, &[], &denied);
}

#[test]
fn a_mode_for_a_group_admits_that_group() {
    let welcome = [member(GROUP), also_member(GROUP)];
    let denied = [stranger(), member(OWNER), also_member(OWNER)];
    admits(&format!("660 {GROUP} -"), &welcome, &[], &denied);
}

#[test]
fn a_mode_for_all_admits_all_users() {
    let welcome = [stranger(), member(GROUP), also_member(OWNER)];
    admits("666 - -", &welcome, &[], &[]);
}

#[test]
fn read_permission_on_the_socket_is_not_enough() {
    admits("644 - -", &[], &[], &[stranger(), member(OWNER)]);
}

#[test]
fn named_users_are_admitted_and_others_are_denied() {
    let refused = [
        member(OWNER),
        also_member(OWNER),
        User::new(STRANGER + 1_000_000),
    ];
    let settings = format!("- - {STRANGER},4711");
    // Not in the group of the socket's file, with it as main group, and with it as additional group.
    let welcome = [
        stranger(),
        User::in_groups(STRANGER, OWNER, &[]),
        User::in_groups(4711, 4711, &[OWNER]),
    ];
    admits(&settings, &welcome, &refused, &[]);
}

#[test]
fn named_users_are_admitted_in_addition_to_a_group() {
    let welcome = [stranger(), member(GROUP), also_member(GROUP)];
    let refused = [User::new(4711), member(OWNER), also_member(OWNER)];
    admits(&format!("660 {GROUP} {STRANGER}"), &welcome, &refused, &[]);
}

#[test]
fn a_user_in_thousands_of_groups_is_a_member_of_each() {
    let mut groups: Vec<u32> = (50_000..53_000).collect();
    groups.push(GROUP);
    let welcome = [User::in_groups(42_105, 42_105, &groups)];
    groups.pop();
    let refused = [User::in_groups(42_105, 42_105, &groups)];
    admits(&format!("660 {GROUP} 4711"), &welcome, &refused, &[]);
}

/// In such a directory, files get the directory's group instead of the producer's.
#[test]
fn a_directory_that_gives_its_group_counts() {
    if !can_be_others() {
        return;
    }
    let scene = Scene::new();
    scene.give_to(OWNER, GROUP, 0o2755);
    let _producer = scene.produce(&User::new(OWNER), "produce 660 - -");
    assert_eq!(scene.reply_of(&member(GROUP), "join"), "joined");
    assert_eq!(scene.reply_of(&also_member(GROUP), "join"), "joined");
    assert_eq!(scene.reply_of(&member(OWNER), "join"), "denied");
}

#[test]
fn access_settings_that_contradict_each_other_are_errors() {
    let place = Place::new();
    let builder = || Producer::builder(place.pool());
    let posix_shm = || builder().backing(Backing::PosixShm);
    let uids = |builder: ProducerBuilder, uid| builder.allow_uids(vec![uid]);
    let group = |name: &str| builder().socket_mode(0o660).socket_group(Some(name.into()));
    let own = rustix::process::getegid().as_raw().to_string();
    for (builder, property) in [
        // The mode gives no access to the group.
        (builder().socket_group(Some(own.clone())), "socket-mode"),
        // Users are listed although all users have access.
        (uids(builder().socket_mode(0o666), 1000), "allow-uids"),
        // This value means "do not change" in system calls.
        (uids(builder(), u32::MAX), "allow-uids"),
        (group(&u32::MAX.to_string()), "socket-group"),
        (group("+5"), "socket-group"),
        (group("no such group"), "socket-group"),
        (group(""), "socket-group"),
        // Memory that cannot be protected from other processes.
        (posix_shm().socket_mode(0o620), "posix-shm"),
        (posix_shm().socket_mode(0o602), "posix-shm"),
        (uids(posix_shm(), 1000), "posix-shm"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(
            matches!(&error, CreateError::Settings(text) if text.contains(property)),
            "{error}"
        );
    }
    place.assert_clean();
    // By name or by number.
    drop(group(&own).build().unwrap());
    place.assert_clean();
}

/// In a user namespace that does not map all users, all others have the same number.
#[test]
fn the_number_of_all_unmapped_users_identifies_nobody() {
    let namespace = ["--user", "--map-user=65534"];
    if users::in_namespace("user", &namespace).is_none() {
        return;
    }
    let place = Place::new();
    let answer = |role: &str| {
        let mut command = Command::new("unshare");
        command
            .args(namespace)
            .arg(std::env::current_exe().unwrap());
        let mut child = Child::from(command, role, &place.pool());
        let answer = child.reply();
        assert!(child.end());
        answer
    };
    for uids in ["1001", "1001,65534"] {
        let error = answer(&format!("produce - - {uids}"));
        assert_contains(&error, "65534 is the number of every user");
    }
    let _producer = Producer::builder(place.pool()).build().unwrap();
    assert_eq!(answer("owner"), "Ok(None)");
}

#[test]
fn a_group_without_the_producer_as_a_member_is_an_error() {
    if !can_be_others() {
        return;
    }
    let scene = Scene::new();
    let reply = scene.reply_of(&User::new(OWNER), &format!("produce 660 {GROUP} -"));
    assert_contains(&reply, "socket-group");
    assert_contains(&reply, "member");
    assert_eq!(scene.place.files(), [scene.program.as_path()]);
}

/// The control thread wakes it.
#[test]
fn a_consumer_of_another_user_that_waits_for_a_descriptor_is_woken() {
    if !can_be_others() {
        return;
    }
    let scene = Scene::new();
    for way in ["descriptor", "set"] {
        let builder = Producer::builder(scene.place.pool()).socket_mode(0o666);
        let builder = builder.delivery(Delivery::Lossless);
        let producer = builder.build().unwrap();
        let mut child = scene
            .start(&User::new(STRANGER), &format!("take {way}"))
            .ready();
        for seed in 0..FRAMES {
            drop(publish_wait(&producer, seed, SIZE));
        }
        assert_eq!(child.reply(), "all");
        assert!(child.end());
    }
}
