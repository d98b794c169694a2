package moltspeak

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds of streams (MS-32).
const (
	// maxStream bounds a stream of a known peer, in bytes. A stream of a stranger has at most wire.MaxMessage, like
	// the stranger's other messages.
	maxStream      = 10 << 20
	streamsPerPeer = 4
	streamIdle     = 10 * time.Minute
	maxStreams     = 64 // open streams of all peers
	maxStreamBytes = 64 << 20
)

// openStream is a stream whose end has not arrived yet.
type openStream struct {
	peer, kind, contentType string
	class                   message.Class    // the class of every part
	pii                     *message.PIIMeta // what all parts declare together
	known                   bool             // the peer is a known peer; all strangers together have half of maxStreams
	next                    int64            // expected seq; -1 before the first chunk
	chunks                  int64
	data                    []byte
	began, active           time.Time
	sources                 []rate.Source // the address and networks of the peer
}

// streams holds the streams of all peers whose end is still to come.
type streams struct {
	mu    sync.Mutex
	open  map[string]*openStream // by peer and stream id
	bytes int
}

func newStreams() *streams { return &streams{open: make(map[string]*openStream)} }

// add adds a part of a stream. complete is the whole stream if the part is a valid end, and otherwise nil.
func (s *streams) add(c *request, p message.Stream) (complete *openStream, e *message.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(c.now)
	key := wire.HashOf(c.m.From.Name(), p.ID)
	st := s.open[key]
	if p.Action == "start" {
		if st != nil {
			return nil, message.FailAt(message.CodeInvalidParam, "p.stream_id", "is open already")
		}
		return nil, s.start(key, c, p)
	}
	if st == nil {
		return nil, message.FailAt(message.CodeInvalidParam, "p.stream_id", "is not an open stream")
	}
	if st.class != c.m.Class && p.Action != "error" {
		s.drop(key)
		return nil, message.FailAt(message.CodeClassification, "cls", "differs from the class of the stream's start")
	}
	st.active, st.pii = c.now, st.pii.Merge(c.m.PII)
	switch p.Action {
	case "chunk":
		if e = s.chunk(st, p); e == nil {
			return nil, nil
		}
	case "end":
		switch {
		case p.Total >= 0 && p.Total != st.chunks:
			e = message.FailAt(message.CodeInvalidParam, "p.total_chunks", "differs from the number of received chunks")
		case p.Checksum != "" && p.Checksum != message.Checksum(sha256.Sum256(st.data)):
			e = message.FailAt(message.CodeInvalidParam, "p.checksum", "does not match")
		default:
			complete = st
		}
	}
	s.drop(key) // "end", "error", or a part that is not valid
	return complete, e
}

func (s *streams) start(key string, c *request, p message.Stream) *message.Error {
	st := &openStream{
		peer: c.m.From.Name(), kind: p.Type, contentType: p.ContentType, class: c.m.Class, pii: c.m.PII, next: -1,
		known: c.isKnown(), sources: c.sources, began: c.now, active: c.now,
	}
	ofPeer := count(maps.Values(s.open), func(o *openStream) bool { return o.peer == st.peer })
	strangers := count(maps.Values(s.open), func(o *openStream) bool { return !o.known })
	full := len(s.open) >= maxStreams || !st.known && strangers >= maxStreams/2
	if ofPeer >= streamsPerPeer || full && !s.displace(st) {
		return message.Fail(message.CodeRateLimit)
	}
	s.open[key] = st
	return nil
}

// displace drops a stream of another stranger whose source has more than the source of st, to make room for st
// (AM-42). It reports whether it dropped a stream.
func (s *streams) displace(st *openStream) bool {
	if st.known {
		return false
	}
	oldestFirst := func(a, b *openStream) int { return a.began.Compare(b.began) }
	table := rate.FairTableOf(s.open, oldestFirst, func(o *openStream) ([]rate.Source, bool) { return o.sources, !o.known })
	displaced, ok := table.FindDisplaceable(st.sources)
	s.drop(displaced)
	return ok
}

func (s *streams) chunk(st *openStream, p message.Stream) *message.Error {
	isFirst := st.next < 0 // a peer may number its chunks from 0 or from 1
	if isFirst && p.Seq != 0 && p.Seq != 1 || !isFirst && p.Seq != st.next {
		return message.FailAt(message.CodeInvalidParam, "p.seq", "is not the next one")
	}
	data := []byte(p.Data)
	if st.kind == "binary" {
		raw, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil {
			return message.FailAt(message.CodeInvalidParam, "p.data", "must be base64")
		}
		data = raw
	}
	switch size := len(st.data) + len(data); {
	case size > maxStream:
		return message.FailAt(message.CodeInvalidParam, "p.data", "a stream has at most 10 MiB")
	case size > wire.MaxMessage && !st.known:
		return message.FailAt(message.CodeInvalidParam, "p.data", "a stream of a stranger has at most 256 KiB")
	case s.bytes+len(data) > maxStreamBytes: // only known peers can fill it: strangers together hold an eighth at most
		return message.Fail(message.CodeRateLimit)
	}
	st.next, st.chunks, st.data = p.Seq+1, st.chunks+1, append(st.data, data...)
	s.bytes += len(data)
	return nil
}

func (s *streams) drop(key string) {
	if st := s.open[key]; st != nil {
		s.bytes -= len(st.data)
		delete(s.open, key)
	}
}

// remove drops a stream because a part of it was refused.
func (s *streams) remove(peer, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(wire.HashOf(peer, id))
}

// sweep drops the streams that are idle. The caller holds s.mu.
func (s *streams) sweep(now time.Time) {
	for key, st := range s.open {
		if now.Sub(st.active) >= streamIdle {
			s.drop(key)
		}
	}
}

// handleStream collects a stream and passes it on when it is complete (MS-32).
func (b *Bridge) handleStream(c *request, p message.Stream) (a answer, e *message.Error) {
	complete, e := b.streams.add(c, p)
	if e != nil {
		return answer{}, e
	}
	isPersonal := c.m.Class == message.PII
	if isPersonal {
		if e := c.m.PII.CheckCoverage(personal.Types(c.m.Content()), c.now); e != nil {
			b.streams.remove(c.m.From.Name(), p.ID)
			return answer{}, e
		}
	}
	if complete == nil {
		return answer{}, b.replays.storeUnlessRepeat(c)
	}
	c.m.PII = complete.pii
	payload := complete.payload(p.ID)
	if isPersonal { // parts may hide data that is split across two of them, or in base64
		if e := c.m.PII.CheckCoverage(personal.Types(message.StreamText(payload)), c.now); e != nil {
			return answer{}, e
		}
	}
	return b.passOn(c, IntentStream, payload, "conv_"+wire.HashOf(c.m.From.Name(), "stream", p.ID), convState{})
}

// payload returns the payload of a complete stream for the node.
func (st *openStream) payload(id string) wire.Value {
	text := string(st.data)
	if st.kind == "binary" {
		text = base64.StdEncoding.EncodeToString(st.data)
	}
	payload := wire.Obj(wire.TextField("action", "stream"), wire.TextField("stream_id", id))
	return payload.WithOptional("type", st.kind).WithOptional("content_type", st.contentType).With("data", wire.Text(text))
}
