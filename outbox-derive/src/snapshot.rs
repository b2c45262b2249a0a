//! What the expansion looks like, pinned in `snapshots/`: a change of the generated code is seen in
//! review. `SNAPSHOTS=write cargo test -p outbox-derive` writes them anew.

use std::path::Path;

fn assert_expands(name: &str, input: &str) {
    let input = syn::parse_str(input).expect("the input is an item");
    let expanded = crate::derive(&input).expect("the input has no mistakes");
    let expanded = prettyplease::unparse(&syn::parse2(expanded).expect("the expansion is a file"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("snapshots/{name}.rs"));
    if std::env::var_os("SNAPSHOTS").is_some() {
        std::fs::write(&path, &expanded).expect("the snapshot can be written");
    }
    let pinned = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(expanded, pinned, "{} differs; SNAPSHOTS=write writes it anew", path.display());
}

#[test]
fn a_struct_with_defaults_expands_to_little() {
    assert_expands(
        "struct_with_defaults",
        r#"
        #[outbox(aggregate = "order")]
        struct OrderCreated { #[outbox(aggregate_id)] id: i64, total: u32 }
        "#,
    );
}

#[test]
fn every_option_of_a_struct_has_its_method() {
    assert_expands(
        "struct_with_options",
        r#"
        #[outbox(aggregate = "order", topic = "orders", version = 2, rename_all = "kebab-case")]
        #[outbox(aggregate_id("tenant", "id"), payload_limit = 4 * 1024, crate = "platform::outbox")]
        #[outbox(header("source" = self.source()))]
        struct OrderPaid<T> where T: Clone {
            tenant: String,
            #[outbox(header)]
            id: T,
            #[outbox(dedup_key)]
            request: Option<Uuid>,
        }
        "#,
    );
}

#[test]
fn an_enum_has_an_arm_a_variant() {
    assert_expands(
        "enum_with_delegate",
        r#"
        #[outbox(aggregate = "order", aggregate_id = "id", header("shop" = "main"))]
        enum OrderEvent {
            Created { id: i64 },
            #[outbox(header("reason" = reason.to_lowercase()))]
            Cancelled { id: i64, reason: String },
            #[outbox(delegate)]
            Paid(OrderPaid),
        }
        "#,
    );
}
