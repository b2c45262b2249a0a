//! A statement with one constant text, prepared once per connection.

use diesel::backend::Backend;
use diesel::expression::AsExpression;
use diesel::pg::Pg;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::QueryResult;
use diesel::sql_types::SingleValue;
use diesel::sql_types::SqlType;
use std::marker::PhantomData;

/// A constant text and its binds. `diesel::sql_query` would be the same, but is never cached.
///
/// The text names its parameters `$1`, `$2`, … in order and each once.
pub(crate) struct Statement<Returns = (), Binds = ()> {
    text: &'static str,
    binds: Binds,
    returns: PhantomData<fn() -> Returns>,
}

/// The statement with this text; bind its parameters next.
pub(crate) fn statement<Returns>(text: &'static str) -> Statement<Returns> {
    Statement { text, binds: (), returns: PhantomData }
}

impl<Returns, Binds> Statement<Returns, Binds> {
    /// The text.
    #[cfg(feature = "relay")]
    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    /// Binds the next parameter.
    pub(crate) fn bind<ST, T>(self, value: T) -> Statement<Returns, (Binds, T::Expression)>
    where
        ST: SqlType + SingleValue,
        T: AsExpression<ST>,
    {
        Statement {
            text: self.text,
            binds: (self.binds, value.as_expression()),
            returns: PhantomData,
        }
    }
}

/// Writes texts and binds alternately.
pub(crate) trait Walk {
    /// Returns what is left of the text behind the last bind.
    fn walk<'b>(
        &'b self,
        text: &'static str,
        out: AstPass<'_, 'b, Pg>,
    ) -> QueryResult<&'static str>;
}

impl Walk for () {
    fn walk<'b>(
        &'b self,
        text: &'static str,
        _out: AstPass<'_, 'b, Pg>,
    ) -> QueryResult<&'static str> {
        Ok(text)
    }
}

impl<Binds: Walk, Last: QueryFragment<Pg>> Walk for (Binds, Last) {
    fn walk<'b>(
        &'b self,
        text: &'static str,
        mut out: AstPass<'_, 'b, Pg>,
    ) -> QueryResult<&'static str> {
        let text = self.0.walk(text, out.reborrow())?;
        let (before, after) = text.split_once('$').expect("one parameter in the text per bind");
        out.push_sql(before);
        self.1.walk_ast(out)?;
        Ok(after.trim_start_matches(|c: char| c.is_ascii_digit()))
    }
}

impl<Returns, Binds: Walk> QueryFragment<Pg> for Statement<Returns, Binds> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        let rest = self.binds.walk(self.text, out.reborrow())?;
        out.push_sql(rest);
        Ok(())
    }
}

impl<Returns, Binds> QueryId for Statement<Returns, Binds> {
    type QueryId = ();
    /// Cached by text and bind types.
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Returns, Binds> Query for Statement<Returns, Binds> {
    type SqlType = Returns;
}

impl<Conn, Returns, Binds> diesel::RunQueryDsl<Conn> for Statement<Returns, Binds> where
    Conn: diesel::Connection<Backend = Pg>
{
}

/// JSON text as it stands, for columns of type `json`: no `serde_json::Value` in between.
#[derive(Debug, Clone, diesel::deserialize::FromSqlRow, diesel::expression::AsExpression)]
#[diesel(sql_type = diesel::sql_types::Json)]
pub(crate) struct RawJson(pub(crate) Vec<u8>);

impl diesel::serialize::ToSql<diesel::sql_types::Json, Pg> for RawJson {
    fn to_sql<'b>(
        &'b self,
        out: &mut diesel::serialize::Output<'b, '_, Pg>,
    ) -> diesel::serialize::Result {
        std::io::Write::write_all(out, &self.0)?;
        Ok(diesel::serialize::IsNull::No)
    }
}

impl diesel::deserialize::FromSql<diesel::sql_types::Json, Pg> for RawJson {
    fn from_sql(value: <Pg as Backend>::RawValue<'_>) -> diesel::deserialize::Result<Self> {
        Ok(Self(value.as_bytes().to_vec()))
    }
}
