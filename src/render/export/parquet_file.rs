//! A table as an Apache Parquet file.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

/// Rows of a group, which is kept in memory.
const ROWS: usize = 1 << 17;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnType {
    /// `INT64`
    Integer,
    /// `DOUBLE`
    Fraction,
    /// `BYTE_ARRAY`, UTF-8
    Text,
}

#[derive(Debug, Clone)]
pub(super) enum ParquetCell<'a> {
    Integer(i64),
    Fraction(f64),
    Text(&'a str),
    Null,
}

impl From<u64> for ParquetCell<'_> {
    /// Addresses and sizes are below 2^57; anything larger is damage, so unknown.
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or(ParquetCell::Null, ParquetCell::Integer)
    }
}

impl<'a, T: Into<ParquetCell<'a>>> From<Option<T>> for ParquetCell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(ParquetCell::Null, Into::into)
    }
}

#[derive(Debug)]
enum Buffer {
    Integers(Vec<i64>),
    Fractions(Vec<f64>),
    Texts(Vec<ByteArray>),
}

#[derive(Debug)]
struct BufferedColumn {
    values: Buffer,
    /// 1: a value; 0: null.
    present: Vec<i16>,
}

pub(super) struct ParquetFile<'a> {
    out: &'a mut dyn Write,
    writer: SerializedFileWriter<Vec<u8>>,
    columns: Vec<BufferedColumn>,
    rows: usize,
}

fn failed(error: parquet::errors::ParquetError) -> io::Error {
    io::Error::other(error)
}

impl<'a> ParquetFile<'a> {
    /// Each column may be null.
    pub(super) fn new(
        out: &'a mut dyn Write,
        columns: &[(&str, ColumnType)],
    ) -> io::Result<ParquetFile<'a>> {
        let field = |(name, kind): &(&str, ColumnType)| {
            let (physical, converted) = match kind {
                ColumnType::Integer => (Physical::INT64, ConvertedType::NONE),
                ColumnType::Fraction => (Physical::DOUBLE, ConvertedType::NONE),
                ColumnType::Text => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
            };
            Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_converted_type(converted)
                .build()
                .map(Arc::new)
        };
        let fields = columns.iter().map(field).collect::<Result<_, _>>().map_err(failed)?;
        let schema =
            Type::group_type_builder("memspy").with_fields(fields).build().map_err(failed)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("memspy ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))
            .map_err(failed)?;
        let buffer = |(_, kind): &(&str, ColumnType)| BufferedColumn {
            present: Vec::new(),
            values: match kind {
                ColumnType::Integer => Buffer::Integers(Vec::new()),
                ColumnType::Fraction => Buffer::Fractions(Vec::new()),
                ColumnType::Text => Buffer::Texts(Vec::new()),
            },
        };
        Ok(ParquetFile { out, writer, columns: columns.iter().map(buffer).collect(), rows: 0 })
    }

    pub(super) fn row(&mut self, cells: &[ParquetCell<'_>]) -> io::Result<()> {
        if cells.len() != self.columns.len() {
            return Err(io::Error::other("a row has another number of cells than its table"));
        }
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            let is_there = match (&mut column.values, cell) {
                (_, ParquetCell::Null) => false,
                (Buffer::Integers(values), ParquetCell::Integer(value)) => {
                    values.push(*value);
                    true
                }
                (Buffer::Fractions(values), ParquetCell::Fraction(value)) => {
                    values.push(*value);
                    true
                }
                (Buffer::Texts(values), ParquetCell::Text(value)) => {
                    values.push(ByteArray::from(*value));
                    true
                }
                _ => return Err(io::Error::other("a cell is of another type than its column")),
            };
            column.present.push(i16::from(is_there));
        }
        self.rows += 1;
        if self.rows == ROWS { self.write_rows() } else { Ok(()) }
    }

    fn write_rows(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group().map_err(failed)?;
        for column in &mut self.columns {
            let Some(mut writer) = group.next_column().map_err(failed)? else { continue };
            let present = Some(&column.present[..]);
            match &mut column.values {
                Buffer::Integers(values) => {
                    let typed = writer.typed::<Int64Type>();
                    typed.write_batch(values, present, None).map_err(failed)?;
                    values.clear();
                }
                Buffer::Fractions(values) => {
                    let typed = writer.typed::<DoubleType>();
                    typed.write_batch(values, present, None).map_err(failed)?;
                    values.clear();
                }
                Buffer::Texts(values) => {
                    let typed = writer.typed::<ByteArrayType>();
                    typed.write_batch(values, present, None).map_err(failed)?;
                    values.clear();
                }
            }
            writer.close().map_err(failed)?;
            column.present.clear();
        }
        group.close().map_err(failed)?;
        self.rows = 0;
        self.writer.flush()?;
        let written = self.writer.inner_mut();
        self.out.write_all(written)?;
        written.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.write_rows()?;
        let rest = self.writer.into_inner().map_err(failed)?;
        self.out.write_all(&rest)
    }
}
