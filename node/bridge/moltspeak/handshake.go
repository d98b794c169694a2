package moltspeak

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	challengeLife = time.Minute // MS-26
	sessionLife   = time.Hour   // MS-27
)

// challenge is a random text that a peer must sign to prove its key (MS-26).
type challenge struct {
	text    string
	key     string // the pinned key of the peer
	expires time.Time
	known   bool          // the peer is a known peer
	sources []rate.Source // the address and networks of the peer
}

// handshakes holds the challenges that peers have not answered yet.
type handshakes struct {
	mu         sync.Mutex
	challenges map[string]challenge // by peer
}

func newHandshakes() *handshakes { return &handshakes{challenges: make(map[string]challenge)} }

// random32 returns 32 random bytes in hex.
func random32() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// newID returns a version 4 UUID (MS-3).
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// challenge returns the challenge for the sender of a hello. Each peer has at most one. A fresh hello gets a new
// challenge. Any other hello may be a replayed recording, so it gets the challenge that still waits for its answer.
// Known peers and strangers have separate limits. At the limit, challenge drops the expired challenges and then, for a
// stranger, one of another stranger whose source has more of them (AM-42). It returns false if it finds no room.
func (h *handshakes) challenge(peer, key string, fresh, known bool, sources []rate.Source, now time.Time) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c, waits := h.challenges[peer]; waits && !fresh && c.key == key && now.Before(c.expires) {
		return c.text, true
	}
	limit := maxChallenges - strangersChallenges
	if !known {
		limit = strangersChallenges
	}
	if _, waits := h.challenges[peer]; !waits && h.countWaiting(known) >= limit {
		maps.DeleteFunc(h.challenges, func(_ string, c challenge) bool { return !now.Before(c.expires) })
		if h.countWaiting(known) >= limit && (known || !h.displace(sources)) {
			return "", false
		}
	}
	c := challenge{text: random32(), key: key, expires: now.Add(challengeLife), known: known, sources: sources}
	h.challenges[peer] = c
	return c.text, true
}

// displace drops the challenge of a stranger to make room for one of another stranger with these sources. It reports
// whether it dropped one.
func (h *handshakes) displace(sources []rate.Source) bool {
	oldestFirst := func(a, b challenge) int { return a.expires.Compare(b.expires) }
	table := rate.FairTableOf(h.challenges, oldestFirst, func(c challenge) ([]rate.Source, bool) { return c.sources, !c.known })
	displaced, ok := table.FindDisplaceable(sources)
	delete(h.challenges, displaced)
	return ok
}

func (h *handshakes) countWaiting(known bool) int {
	return count(maps.Values(h.challenges), func(c challenge) bool { return c.known == known })
}

// redeem uses up the challenge of a peer. It returns false if text or key does not match the challenge, or if the
// challenge has expired.
func (h *handshakes) redeem(peer, key, text string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.challenges[peer]
	delete(h.challenges, peer)
	return c.isAnsweredBy(key, text, now)
}

// isAnsweredBy reports whether text, in a message that key signed, answers the challenge before it expires.
func (c challenge) isAnsweredBy(key, text string, now time.Time) bool {
	return c.text != "" && c.text == strings.ToLower(text) && c.key == key && now.Before(c.expires)
}

// isWaiting reports whether text is the challenge that the peer has not answered yet. The challenge may have expired.
func (h *handshakes) isWaiting(peer, text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.challenges[peer]
	return ok && c.text == strings.ToLower(text)
}

// capabilitiesWith returns the capabilities of an agent that offers these tools.
func capabilitiesWith(tools []ToolInfo) []string {
	out := []string{"query", "respond", "error", "task", "task.create", "task.status", "task.cancel", "stream", "stream.start", "stream.chunk", "stream.end", "human", "human.consent"}
	if len(tools) > 0 {
		out = append(out, "tool", "tool.invoke", "tool.list")
	}
	return out
}

func helloPayload(capabilities []string) wire.Value {
	return wire.Obj(
		wire.Field("protocol_versions", wire.Texts([]string{message.Version})), wire.Field("capabilities", wire.Texts(capabilities)),
		wire.Field("extensions", wire.Arr()), wire.Field("max_message_size", wire.Int(message.MaxMessage)), wire.Field("supported_cls", wire.Texts(message.Classes())),
	)
}

// handleHello answers a hello with a challenge (MS-24).
func (b *Bridge) handleHello(c *request, h message.Hello) (answer, *message.Error) {
	if !slices.Contains(h.Versions, message.Version) {
		return answer{}, message.FailAt(message.CodeVersion, "p.protocol_versions", `must contain "0.1"`)
	}
	if p := c.peer; !slices.Equal(p.Classes, h.Classes) {
		p.Classes = h.Classes
		if err := b.pins.save(c.ctx, p, c.now); err != nil {
			return answer{}, message.Fail(message.CodeInternal).Because(err)
		}
	}
	v := helloPayload(b.capabilities)
	if c.unbound && !c.fresh {
		return answer{op: message.OpHelloAck, p: v}, nil // the connection sends its own challenge
	}
	if text, ok := b.handshake.challenge(c.m.From.Name(), c.peer.Key, c.fresh, c.isKnown(), c.sources, c.now); ok {
		v = v.With("challenge", wire.Text(text))
	}
	return answer{op: message.OpHelloAck, p: v}, nil
}

// newVerify returns a message that makes an agent prove its key (MS-26).
func newVerify(challenge string, to message.Agent, class message.Class, now time.Time) message.Draft {
	return message.Draft{
		ID: newID(), Op: message.OpVerify, Time: now, To: to, Class: class,
		P: wire.Obj(wire.TextField("challenge", challenge), wire.Field("timestamp", wire.Int(now.UnixMilli()))),
	}
}

// answerVerify proves our key to the peer: the signature of the answer covers the challenge, both names, and the id of
// the peer's message (MS-26).
func answerVerify(v message.Verify, now time.Time) (answer, *message.Error) {
	if v.Time.Before(now.Add(-challengeLife)) || v.Time.After(now.Add(challengeLife)) {
		return answer{}, message.FailAt(message.CodeInvalidParam, "p.timestamp", "must be within 60 seconds")
	}
	return answer{op: message.OpVerifyResponse, p: wire.Obj(wire.TextField("challenge", v.Challenge))}, nil
}

// acceptProof accepts the right answer to our challenge to the sender.
func (h *handshakes) acceptProof(c *request, text string) (answer, *message.Error) {
	if !h.redeem(c.m.From.Name(), c.peer.Key, text, c.now) {
		return answer{}, message.Fail(message.CodeAuthFailed)
	}
	return sessionAnswer(c.now), nil
}

// sessionAnswer names a session (MS-27). We keep no sessions: every message is signed, at most five minutes old and
// accepted once, so it proves the sender's key without one.
func sessionAnswer(now time.Time) answer {
	id := random32()[:32]
	return answer{
		op:  message.OpEstablished,
		p:   wire.Obj(wire.TextField("session_id", id), wire.Field("expires", wire.Int(now.Add(sessionLife).UnixMilli()))),
		ext: wire.Obj(wire.Field("agentmesh.session", wire.Obj(wire.TextField("id", id)))),
	}
}
