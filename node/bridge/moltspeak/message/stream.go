package message

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"unicode"

	"github.com/agentmesh/agentmesh/node/wire"
)

// StreamText returns the payload of a stream in the form that can be scanned for personal data: the printable text in
// binary data takes the place of the data.
func StreamText(p wire.Value) wire.Value {
	raw, err := base64.StdEncoding.DecodeString(p.GetStr("data"))
	if p.GetStr("type") != "binary" || err != nil {
		return p
	}
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\n'
	}, strings.ToValidUTF8(string(raw), "\n"))
	return p.With("data", wire.Text(text))
}

// SplitStream splits a stream into start, chunks and end (MS-32). Each chunk of binary data is encoded as base64 by
// itself; the checksum covers the decoded bytes.
func SplitStream(p wire.Value, id string) ([]Draft, error) {
	// A chunk has at most this many bytes of data: text fits into a message even if all of it is escaped, and binary
	// data fits into a chunk as base64.
	const chunkSize = 48 << 10
	data, encode := []byte(p.GetStr("data")), func(b []byte) string { return string(b) }
	binary := p.GetStr("type") == "binary"
	if binary {
		raw, err := base64.StdEncoding.Strict().DecodeString(p.GetStr("data"))
		if err != nil {
			return nil, errors.New("moltspeak: the data of a binary stream must be base64")
		}
		data, encode = raw, base64.StdEncoding.EncodeToString
	}
	base := func(action string) wire.Value {
		return wire.Obj(wire.TextField("action", action), wire.TextField("stream_id", id))
	}
	start := base("start")
	for _, key := range []string{"type", "content_type"} {
		if s := p.GetStr(key); s != "" {
			start = start.With(key, wire.Text(s))
		}
	}
	out := []Draft{{Op: OpStream, P: start}}
	sum := sha256.Sum256(data)
	seq := int64(0)
	for ; len(data) > 0; seq++ {
		n := min(chunkSize, len(data))
		for !binary && n < len(data) && n > 0 && data[n]&0xc0 == 0x80 { // not inside a character
			n--
		}
		out = append(out, Draft{Op: OpStream, P: base("chunk").With("seq", wire.Int(seq)).With("data", wire.Text(encode(data[:n])))})
		data = data[n:]
	}
	end := base("end").With("total_chunks", wire.Int(seq)).With("checksum", wire.Text(Checksum(sum)))
	return append(out, Draft{Op: OpStream, P: end}), nil
}

// Checksum returns the checksum for the end of a stream.
func Checksum(sum [32]byte) string { return "sha256:" + hex.EncodeToString(sum[:]) }
