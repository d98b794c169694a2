package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// pipeline is a list of statements, encoded as messages of the PostgreSQL protocol in one buffer, which is sent in one
// write. A batch of pgx would copy and allocate more.
//
// Nothing is read until everything is written. So the answers must fit into the buffers of the connection, or else each
// side would wait for the other. The answer to a statement that returns no rows is only a few bytes.
type pipeline struct {
	conn   *pgx.Conn
	known  map[string]bool // the statements that are prepared on the connection, by name; nil if none may be prepared
	parsed []string        // the statements that the pipeline prepares, in order
	buf    []byte          // kept for the next pipeline
	n      int             // statements
}

// maxKept is the largest buffer that is kept.
const maxKept = 4 << 20

// prepared is the key, in the custom data of a connection, of the names of its prepared statements.
const prepared = "agentmesh prepared"

// reset empties the pipeline and prepares it for conn.
func (p *pipeline) reset(conn *pgx.Conn) {
	if cap(p.buf) > maxKept {
		p.buf = nil
	}
	*p = pipeline{conn: conn, parsed: p.parsed[:0], buf: p.buf[:0]}
	// Some poolers do not support prepared statements, so a user can turn them off.
	if conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return
	}
	data := conn.PgConn().CustomData()
	if p.known, _ = data[prepared].(map[string]bool); p.known == nil {
		p.known = make(map[string]bool)
		data[prepared] = p.known
	}
}

// argument appends the binary form of an argument of a statement.
type argument func([]byte) []byte

// add adds a statement. PostgreSQL infers the types of its arguments from its text.
func (p *pipeline) add(sql string, arguments ...argument) {
	var name string
	if p.known != nil {
		name = fmt.Sprintf("agentmesh_%08x", crc32.ChecksumIEEE([]byte(sql)))
	}
	if name == "" || !p.known[name] && !slices.Contains(p.parsed, name) { // a statement without a name is parsed each time
		p.parsed = append(p.parsed, name)
		p.message('P', func(b []byte) []byte { // Parse
			b = append(append(b, name...), 0)
			b = append(append(b, sql...), 0)
			return append(b, 0, 0) // no argument types are given
		})
	}
	p.message('B', func(b []byte) []byte { // Bind
		b = append(b, 0) // the unnamed portal
		b = append(append(b, name...), 0)
		b = append(b, 0, 1, 0, 1) // all arguments are binary
		b = binary.BigEndian.AppendUint16(b, uint16(len(arguments)))
		for _, arg := range arguments {
			b = appendSized(b, 0, arg)
		}
		return append(b, 0, 0) // all results are text
	})
	p.message('E', func(b []byte) []byte { return append(b, 0, 0, 0, 0, 0) }) // Execute: the unnamed portal, all rows
	p.n++
}

// message appends a message, whose length includes the four bytes of the length itself.
func (p *pipeline) message(kind byte, body func([]byte) []byte) {
	p.buf = appendSized(append(p.buf, kind), 4, body)
}

// appendSized appends the length of what body appends, plus extra, and then what body appends.
func appendSized(b []byte, extra int, body func([]byte) []byte) []byte {
	start := len(b)
	b = body(append(b, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4+extra))
	return b
}

// run sends the pipeline. It calls executed with the number, from 0, and the tag of each statement that was executed.
// An error that the server reported is a *pgconn.PgError.
func (p *pipeline) run(ctx context.Context, executed func(i int, tag string)) (err error) {
	p.message('S', func(b []byte) []byte { return b }) // Sync
	server := p.conn.PgConn()
	if err := server.SyncConn(ctx); err != nil {
		return err
	}
	if err := write(ctx, server.Conn(), p.buf); err != nil {
		return errors.Join(err, p.conn.Close(ctx))
	}
	for i := 0; ; {
		message, receiveErr := server.ReceiveMessage(ctx)
		if receiveErr != nil {
			return errors.Join(err, receiveErr)
		}
		switch m := message.(type) {
		case *pgproto3.ParseComplete:
			if p.known != nil {
				p.known[p.parsed[0]] = true
			}
			p.parsed = p.parsed[1:]
		case *pgproto3.CommandComplete:
			executed(i, string(m.CommandTag))
			i++
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return err
		}
	}
}

// write writes all of b before the deadline of ctx.
func write(ctx context.Context, conn net.Conn, b []byte) error {
	deadline, _ := ctx.Deadline()
	if err := conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	return conn.SetWriteDeadline(time.Time{})
}

// Object ids of types in pg_type.
const (
	oidBytea  = 17
	oidBigint = 20
)

func bytesArgument[T []byte | string](v T) argument {
	return func(b []byte) []byte { return append(b, v...) }
}

// array returns an argument with n elements of a type. element appends the element with the given index.
func array(oid uint32, n int, element func([]byte, int) []byte) argument {
	return func(b []byte) []byte {
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0) // one dimension, no nulls
		b = binary.BigEndian.AppendUint32(b, oid)
		b = binary.BigEndian.AppendUint32(b, uint32(n))
		b = append(b, 0, 0, 0, 1) // the first index
		for i := range n {
			b = element(b, i)
		}
		return b
	}
}

// appendElement appends an element of an array: its length, and then its bytes.
func appendElement[T []byte | string](b []byte, v T) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
}

func appendBigint(b []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0, 0, 0, 8), uint64(n))
}

func keysArgument(keys []string) argument {
	return array(oidBytea, len(keys), func(b []byte, i int) []byte { return appendElement(b, keys[i]) })
}

// changedRow is a row to write, with its key.
type changedRow struct {
	key string
	*row
}

// columns returns the columns of rows as four arguments.
func columns(rows []changedRow) []argument {
	return []argument{
		array(oidBytea, len(rows), func(b []byte, i int) []byte { return appendElement(b, rows[i].key) }),
		array(oidBigint, len(rows), func(b []byte, i int) []byte { return appendBigint(b, rows[i].num) }),
		array(oidBigint, len(rows), func(b []byte, i int) []byte { return appendBigint(b, rows[i].due) }),
		array(oidBytea, len(rows), func(b []byte, i int) []byte { return appendElement(b, rows[i].value) }),
	}
}
