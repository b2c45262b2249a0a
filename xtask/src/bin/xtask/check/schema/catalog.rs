//! The tables of the schema `outbox`, as the database describes them.

use postgres::Client;

/// Everything that is printed.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// By name.
    pub(crate) tables: Vec<Table>,
    /// Pairs of tables that one foreign key of one column joins.
    pub(crate) joins: Vec<Join>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) comment: Option<String>,
    pub(crate) primary_key: Vec<String>,
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) comment: Option<String>,
    /// As in `pg_type.typname`; for an array that of its elements, for a domain that of its base.
    pub(crate) type_name: String,
    pub(crate) is_array: bool,
    pub(crate) is_nullable: bool,
}

#[derive(Debug)]
pub(crate) struct Join {
    pub(crate) child: String,
    pub(crate) parent: String,
    pub(crate) column: String,
}

/// Partitions are left out: nobody but the database names them in a statement.
const TABLES: &str = "\
SELECT c.oid, c.relname::text, obj_description(c.oid, 'pg_class'),
       ARRAY(SELECT a.attname::text
               FROM pg_index i
               CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
              WHERE i.indrelid = c.oid AND i.indisprimary
              ORDER BY k.position)
  FROM pg_class c
 WHERE c.relnamespace = 'outbox'::regnamespace
   AND c.relkind IN ('r', 'p') AND NOT c.relispartition
 ORDER BY c.relname";

const COLUMNS: &str = "\
SELECT a.attname::text, col_description(a.attrelid, a.attnum),
       coalesce(e.typname, t.typname)::text, e.oid IS NOT NULL, NOT a.attnotnull
  FROM pg_attribute a
  JOIN pg_type c ON c.oid = a.atttypid
  JOIN pg_type t ON t.oid = CASE c.typtype WHEN 'd' THEN c.typbasetype ELSE c.oid END
  LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum";

/// A pair with several foreign keys has no join of its own: diesel could not choose.
const JOINS: &str = "\
SELECT child.relname::text, parent.relname::text, min(a.attname::text)
  FROM pg_constraint f
  JOIN pg_class child ON child.oid = f.conrelid
  JOIN pg_class parent ON parent.oid = f.confrelid
  JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = f.conkey[1]
 WHERE f.contype = 'f' AND f.connamespace = 'outbox'::regnamespace
   AND NOT child.relispartition AND NOT parent.relispartition AND child.oid <> parent.oid
 GROUP BY child.relname, parent.relname
HAVING count(*) = 1 AND max(cardinality(f.conkey)) = 1
 ORDER BY child.relname, parent.relname";

/// Reads it all.
pub(crate) fn read(client: &mut Client) -> Result<Catalog, postgres::Error> {
    let tables = client
        .query(TABLES, &[])?
        .into_iter()
        .map(|row| {
            let oid: u32 = row.get(0);
            Ok(Table {
                name: row.get(1),
                comment: row.get(2),
                primary_key: row.get(3),
                columns: columns(client, oid)?,
            })
        })
        .collect::<Result<_, postgres::Error>>()?;
    let joins = client
        .query(JOINS, &[])?
        .into_iter()
        .map(|row| Join { child: row.get(0), parent: row.get(1), column: row.get(2) })
        .collect();
    Ok(Catalog { tables, joins })
}

fn columns(client: &mut Client, table: u32) -> Result<Vec<Column>, postgres::Error> {
    let column = |row: postgres::Row| Column {
        name: row.get(0),
        comment: row.get(1),
        type_name: row.get(2),
        is_array: row.get(3),
        is_nullable: row.get(4),
    };
    Ok(client.query(COLUMNS, &[&table])?.into_iter().map(column).collect())
}
