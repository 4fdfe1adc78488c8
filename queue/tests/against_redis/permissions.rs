//! Users without some of the permissions that an append needs.

use spillway_queue::Redis;
use spillway_queue::access::Access;
use spillway_queue::permissions::missing;
use zeroize::Zeroizing;

use crate::server::{PREFIX, Server};

#[tokio::test]
async fn what_a_user_may_not_do_is_named_and_nothing_of_it_is_done() {
    let server = Server::start(&[]).await;
    let all = ["MULTI", "EXEC", "XADD", "HINCRBY", "DISCARD"];
    for (name, rules, expected) in [
        ("whole", vec![], vec![]),
        ("multi", vec!["-multi"], vec!["MULTI"]),
        ("exec", vec!["-exec"], vec!["EXEC"]),
        ("xadd", vec!["-xadd"], vec!["XADD"]),
        ("counts", vec!["-hincrby"], vec!["HINCRBY"]),
        ("discard", vec!["-discard"], vec!["DISCARD"]),
        ("keys", vec!["resetkeys", "~elsewhere:*"], vec!["XADD", "HINCRBY"]),
        ("none", vec!["-@transaction"], all[..2].to_vec()),
    ] {
        let words = [&["ACL", "SETUSER", name, "on", ">hush", "~*", "&*", "+@all"], &rules[..]];
        let _: String = server.command(&words.concat()).await;
        let password = Some(Zeroizing::new("hush".to_owned()));
        let access = Access { password, ..Access::default() };
        let url = format!("unix://{}?user={name}", server.path("redis.sock").display());
        let redis = Redis::with_access(&url, PREFIX, &access).expect("a URL");
        let mut connection = redis.connect(None).await.expect("the user is let in");
        let found = missing(&redis, &mut connection).await.expect("redis answers");
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(server.command::<u64>(&["DBSIZE"]).await, 0);
}
