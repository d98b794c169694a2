package moltspeak

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds of streams (MS-32).
const (
	maxStream      = 10 << 20
	streamsPerPeer = 4
	streamIdle     = 10 * time.Minute
	maxStreams     = 64 // of all peers: 640 MiB would be too much, so their sum is bounded, too
	maxStreamBytes = 64 << 20
)

// incoming is a stream that is not complete.
type incoming struct {
	peer, kind, content string
	class               message.Class    // of every piece
	pii                 *message.PIIMeta // what all pieces hold together
	known               bool             // to the owner: the others share half of what there is
	next                int64            // seq that must come; -1 before the first
	chunks              int64
	data                []byte
	began, active       time.Time
	sources             []rate.Source
}

type streams struct {
	mu    sync.Mutex
	open  map[string]*incoming // by peer and stream id
	bytes int
}

func newStreams() *streams { return &streams{open: make(map[string]*incoming)} }

// take adds a piece of a stream, which has one class from its start to its end. done is the whole stream once its end came
// and the checksum is right. sources are those of a peer that the owner does not know.
func (s *streams) take(m *message.Message, p message.Stream, known bool, sources []rate.Source, now time.Time) (done *incoming, e *message.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	peer := m.From.Name()
	key := hash(peer, p.ID)
	in := s.open[key]
	if p.Action == "start" {
		if in != nil {
			return nil, message.FailAt(message.CodeInvalidParam, "p.stream_id", "is open already")
		}
		return nil, s.start(key, m, p, &incoming{known: known, sources: sources, began: now, active: now})
	}
	if in == nil {
		return nil, message.FailAt(message.CodeInvalidParam, "p.stream_id", "is no open stream")
	}
	if in.class != m.Class && p.Action != "error" {
		s.drop(key)
		return nil, message.FailAt(message.CodeClassification, "cls", "is not the class that the stream began with")
	}
	in.active, in.pii = now, in.pii.And(m.PII)
	switch p.Action {
	case "chunk":
		if e = s.chunk(in, p); e != nil {
			s.drop(key)
		}
		return nil, e
	case "end":
		s.drop(key)
		if p.Total >= 0 && p.Total != in.chunks {
			return nil, message.FailAt(message.CodeInvalidParam, "p.total_chunks", "is not how many came")
		}
		if p.Checksum != "" && p.Checksum != message.Checksum(sha256.Sum256(in.data)) {
			return nil, message.FailAt(message.CodeInvalidParam, "p.checksum", "does not match")
		}
		return in, nil
	}
	s.drop(key) // "error"
	return nil, nil
}

func (s *streams) start(key string, m *message.Message, p message.Stream, in *incoming) *message.Error {
	n := 0
	in.peer, in.kind, in.content, in.class, in.pii, in.next = m.From.Name(), p.Type, p.ContentType, m.Class, m.PII, -1
	for _, o := range s.open {
		if o.peer == in.peer {
			n++
		}
	}
	strangers, _ := s.strangers()
	full := len(s.open) >= maxStreams || !in.known && strangers >= maxStreams/2
	if n >= streamsPerPeer || full && !s.displace(in, func(*incoming) int { return 1 }, 1) {
		return message.Fail(message.CodeRateLimit)
	}
	s.open[key] = in
	return nil
}

// displace drops a stream of another stranger whose source has more, measured by size, than that of in would have (AM-42).
// It reports whether it could.
func (s *streams) displace(in *incoming, size func(*incoming) int, more int) bool {
	if in.known {
		return false
	}
	var crowd rate.Crowd[string]
	for _, key := range slices.SortedFunc(maps.Keys(s.open), func(a, b string) int { return s.open[a].began.Compare(s.open[b].began) }) {
		if o := s.open[key]; !o.known && o != in {
			crowd.Add(rate.Place[string]{Key: key, Sources: o.sources, Size: size(o)})
		}
	}
	victim, ok := crowd.Victim(in.sources, more)
	s.drop(victim)
	return ok
}

func (s *streams) chunk(in *incoming, p message.Stream) *message.Error {
	if in.next < 0 && p.Seq != 0 && p.Seq != 1 || in.next >= 0 && p.Seq != in.next {
		return message.FailAt(message.CodeInvalidParam, "p.seq", "leaves a gap or repeats")
	}
	data := []byte(p.Data)
	if in.kind == "binary" {
		raw, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil {
			return message.FailAt(message.CodeInvalidParam, "p.data", "must be base64")
		}
		data = raw
	}
	if len(in.data)+len(data) > maxStream {
		return message.FailAt(message.CodeInvalidParam, "p.data", "a stream has at most 10 MiB")
	}
	for _, theirs := s.strangers(); s.bytes+len(data) > maxStreamBytes || !in.known && theirs+len(data) > maxStreamBytes/2; _, theirs = s.strangers() {
		if !s.displace(in, func(o *incoming) int { return len(o.data) }, len(in.data)+len(data)) {
			return message.Fail(message.CodeRateLimit)
		}
	}
	in.next, in.chunks, in.data = p.Seq+1, in.chunks+1, append(in.data, data...)
	s.bytes += len(data)
	return nil
}

// strangers counts the streams and bytes of peers that the owner does not know.
func (s *streams) strangers() (n, size int) {
	for _, in := range s.open {
		if !in.known {
			n++
			size += len(in.data)
		}
	}
	return n, size
}

func (s *streams) drop(key string) {
	if in := s.open[key]; in != nil {
		s.bytes -= len(in.data)
		delete(s.open, key)
	}
}

// end drops a stream, where it is open.
func (s *streams) end(peer, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(hash(peer, id))
}

func (s *streams) sweep(now time.Time) {
	for key, in := range s.open {
		if now.Sub(in.active) >= streamIdle {
			s.drop(key)
		}
	}
}

// stream collects a stream and hands it over whole (MS-32).
func (b *Bridge) stream(c *exchange, p message.Stream) (answer, *message.Error) {
	done, e := b.streams.take(&c.m, p, c.known(), c.sources, c.now)
	if e != nil {
		return answer{}, e
	}
	if c.m.Class == message.PII {
		if e := c.m.PII.Covers(personal.Types(c.m.P), c.now); e != nil {
			b.streams.end(c.m.From.Name(), p.ID)
			return answer{}, e
		}
	}
	if done == nil {
		return answer{}, b.remember(c, seen{Digest: hex.EncodeToString(c.digest[:])})
	}
	c.m.PII = done.pii
	text := string(done.data)
	if done.kind == "binary" {
		text = base64.StdEncoding.EncodeToString(done.data)
	}
	payload := wire.Obj(wire.TextField("action", "stream"), wire.TextField("stream_id", p.ID))
	for _, m := range []struct{ key, value string }{{"type", done.kind}, {"content_type", done.content}} {
		if m.value != "" {
			payload = payload.With(m.key, wire.Text(m.value))
		}
	}
	payload = payload.With("data", wire.Text(text))
	if c.m.Class == message.PII { // the pieces hid what lies across two of them, or in base64
		if e := c.m.PII.Covers(personal.Types(message.StreamText(payload)), c.now); e != nil {
			return answer{}, e
		}
	}
	return b.hand(c, IntentStream, payload, "conv_"+hash(c.m.From.Name(), "stream", p.ID), thread{})
}
