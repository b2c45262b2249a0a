use std::time::Duration;

use diesel_async::SimpleAsyncConnection as _;
use outbox_tests::{TestDatabase, TestRedis, eventually};

#[test]
fn each_test_owns_a_database_with_the_schema() {
    let (one, other) = (TestDatabase::new(), TestDatabase::new());
    one.sql("DELETE FROM outbox.subscriptions");
    assert_eq!(one.value::<i64>("SELECT count(*) FROM outbox.subscriptions"), 0);
    assert_eq!(other.value::<i64>("SELECT count(*) FROM outbox.subscriptions"), 1);
}

#[test]
fn an_empty_database_has_no_schema() {
    let database = TestDatabase::empty();
    assert!(database.value::<bool>("SELECT to_regnamespace('outbox') IS NULL"));
}

#[tokio::test]
async fn a_dropped_database_is_gone_even_while_someone_is_connected() {
    let database = TestDatabase::new();
    let witness = TestDatabase::empty();
    let name = database.name().to_owned();
    let mut conn = database.connect().await;
    database.sql(&format!("CREATE ROLE {name}_guest; GRANT ALL ON outbox.events TO {name}_guest"));
    drop(database);
    assert!(conn.batch_execute("SELECT 1").await.is_err());
    let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_database WHERE datname = '{name}')");
    assert!(witness.value::<bool>(&gone));
    let roles = format!("SELECT count(*) FROM pg_roles WHERE rolname LIKE '{name}\\_%'");
    assert_eq!(witness.value::<i64>(&roles), 0);
}

#[tokio::test]
async fn eventually_returns_the_first_answer() {
    let mut asked = 0;
    let answer = eventually(Duration::from_secs(5), async || {
        asked += 1;
        (asked == 3).then_some(asked)
    })
    .await;
    assert_eq!(answer, 3);
}

#[tokio::test]
#[should_panic(expected = "database.rs")]
async fn eventually_names_the_line_that_waited_in_vain() {
    eventually(Duration::ZERO, async || None::<()>).await;
}

#[tokio::test]
async fn tests_on_one_redis_do_not_see_each_others_keys() {
    use redis::AsyncCommands as _;

    let (one, other) = (TestRedis::new(), TestRedis::new());
    let mut conn = one.connect().await;
    let (key, others) = (format!("{}a", one.prefix()), format!("{}a", other.prefix()));
    let _: () = conn.set(&key, 1).await.unwrap();
    assert!(!conn.exists::<_, bool>(&others).await.unwrap());
    let mut conn = other.connect().await;
    drop(one);
    assert!(!conn.exists::<_, bool>(&key).await.unwrap());
}
