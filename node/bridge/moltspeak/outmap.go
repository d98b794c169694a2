package moltspeak

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
)

// drafts maps a message of the node (§10). None: there is nothing to say.
func (b *Bridge) drafts(d bridge.Delivery, t thread, to Agent) ([]Draft, error) {
	m := d.Message
	payload := m.Payload.Without("metadata")
	act := m.Action()
	if t.Re != "" {
		return b.respondTo(t, payload, act), nil
	}
	p := payload
	switch {
	case act == wire.ActionPending || act == wire.ActionReceived:
		return nil, nil // says where a message stands
	case act == wire.ActionClose && m.Intent != wire.RequestInfo && m.Intent != IntentQuery && m.Intent != IntentTool && m.Intent != IntentStream:
		end := "complete"
		if payload.GetStr("status") == "failed" {
			end = "cancel"
		}
		return []Draft{{Op: OpTask, P: wire.Obj(wire.TextField("action", end), wire.TextField("task_id", string(m.Conversation)))}}, nil
	case act == wire.ActionClose:
		return nil, nil // a query is over with its answer
	case m.Intent == wire.RequestInfo && act == "ask":
		return []Draft{{Op: OpQuery, P: wire.Obj(wire.TextField("domain", ownDomain), wire.TextField("intent", "ask"), wire.Field("params", payload.Without("action")))}}, nil
	case m.Intent == IntentQuery:
		p = payload.Without("action")
		return checked(Draft{Op: OpQuery, P: p})
	case m.Intent == IntentTask:
		if p.GetStr("task_id") == "" {
			p = p.With("task_id", wire.Text(string(m.Conversation)))
		}
		return checked(Draft{Op: OpTask, P: p})
	case m.Intent == IntentTool:
		return checked(Draft{Op: OpTool, P: p, Cap: []string{"tool.invoke"}})
	case m.Intent == IntentStream:
		return pieces(p, string(m.Conversation))
	}
	return []Draft{{Op: OpTask, P: wire.Obj(wire.TextField("action", "create"), wire.TextField("task_id", string(m.Conversation)),
		wire.TextField("type", string(m.Intent)), wire.Field("params", payload))}}, nil
}

// checked refuses what the peer would.
func checked(d Draft) ([]Draft, error) {
	if _, e := (Message{Op: d.Op, P: d.P}).Payload(); e != nil {
		return nil, fmt.Errorf("moltspeak: the payload is none of the protocol: %w", e)
	}
	return []Draft{d}, nil
}

// respondTo answers the message of a peer that waits.
func (b *Bridge) respondTo(t thread, payload wire.Value, act string) []Draft {
	r := respondOf(payload, t.Native || t.Op == OpTask && wire.Intent(t.Intent).Standard()) // older threads do not say it
	if act == wire.ActionPending || act == wire.ActionReceived || act == wire.ActionClose {
		r.Data = payload
	}
	switch act {
	case wire.ActionPending, wire.ActionReceived:
		r.Status = "partial"
	case wire.ActionClose:
		if t.Done {
			return nil
		}
		if payload.GetStr("status") == "failed" {
			r.Status = "error"
		}
	default:
		if t.Op == OpTask && act != "respond" {
			r.Status = "partial" // a task stays open until it is closed (§10)
		}
	}
	d := Draft{Op: OpRespond, Re: t.Re, P: r.value()}
	if t.Confidential {
		d.Class = Confidential
	}
	return []Draft{d}
}

// streamed is the payload of a stream as the scanner reads it: of binary data, the text that stands in it.
func streamed(p wire.Value) wire.Value {
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

// pieces cuts a stream into start, chunks and end (MS-32). Binary data comes in base64 and leaves so, each chunk for
// itself; the checksum is over the bytes.
func pieces(p wire.Value, id string) ([]Draft, error) {
	const piece = 48 << 10 // of text; escaped it stays a message, and base64 of it a chunk
	data, encode := []byte(p.GetStr("data")), func(b []byte) string { return string(b) }
	binary := p.GetStr("type") == "binary"
	if binary {
		raw, err := base64.StdEncoding.Strict().DecodeString(p.GetStr("data"))
		if err != nil {
			return nil, errors.New("moltspeak: the data of a binary stream is base64")
		}
		data, encode = raw, base64.StdEncoding.EncodeToString
	}
	base := func(act string) wire.Value {
		return wire.Obj(wire.TextField("action", act), wire.TextField("stream_id", id))
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
		n := min(piece, len(data))
		for !binary && n < len(data) && n > 0 && data[n]&0xc0 == 0x80 { // not within a character
			n--
		}
		out = append(out, Draft{Op: OpStream, P: base("chunk").With("seq", wire.Int(seq)).With("data", wire.Text(encode(data[:n])))})
		data = data[n:]
	}
	end := base("end").With("total_chunks", wire.Int(seq)).With("checksum", wire.Text(checksum(sum)))
	return append(out, Draft{Op: OpStream, P: end}), nil
}
