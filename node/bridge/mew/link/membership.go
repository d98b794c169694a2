package link

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// membership is our part in a space: the connection, what we know of the space, and what we say there. One goroutine reads
// what comes in; it keeps track of the space and obeys control at once.
type membership struct {
	cfg         *Config
	link        *bridge.Link
	token       client.Credential
	target      *url.URL
	log         *slog.Logger
	records     *records
	receive     func(job)     // takes an envelope that is for the node
	joinedSpace func()        // called after each join
	wake        chan struct{} // the owner has the link connect now
	feeds       view.Feeds

	mu     sync.Mutex
	state  bridge.LinkState
	since  time.Time
	fault  string
	retry  time.Time
	down   string          // why nothing is tried until the owner acts: the space shut us down or threw us out
	conn   *websocket.Conn // nil: not in the space
	space  spaceState
	pause  paused
	echoes map[string]chan outcome
}

// status returns how the connection stands.
func (m *membership) status() bridge.LinkStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bridge.LinkStatus{
		Name: m.link.Name, Kind: Kind, To: m.target.Redacted(), State: m.state, Since: m.since, Error: m.fault,
		Peers: len(m.space.people), Retry: m.retry,
	}
}

// keepUp connects again and again.
func (m *membership) keepUp(ctx context.Context) {
	wait := m.cfg.Retry
	for ctx.Err() == nil {
		if m.isDown() {
			select {
			case <-m.wake:
				m.rise(ctx)
				wait = m.cfg.Retry
			case <-ctx.Done():
			}
			continue
		}
		began := time.Now()
		err := m.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steadyAfter {
			wait = m.cfg.Retry
		}
		if m.isDown() {
			m.standDown()
			continue
		}
		pause := wait/2 + rand.N(wait/2+1)
		m.stand(bridge.LinkConnecting, err, time.Now().Add(pause))
		m.log.Info("the link to the space ended; it is tried again", "in", pause, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-m.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, m.cfg.MaxRetry)
	}
}

func (m *membership) stand(s bridge.LinkState, err error, retry time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != s {
		m.state, m.since = s, time.Now()
	}
	m.retry, m.fault = retry, ""
	if err != nil {
		m.fault = envelope.ToPrintable(err.Error(), 300)
	}
}

func (m *membership) isDown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down != ""
}

// standDown says why the link is down.
func (m *membership) standDown() {
	m.mu.Lock()
	why := m.down
	m.mu.Unlock()
	m.stand(bridge.LinkDown, errors.New(why+"; agentmesh mew connect joins again"), time.Time{})
}

func (m *membership) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, welcomeBy)
	defer cancel()
	h := http.Header{"Authorization": {"Bearer " + string(m.token)}}
	conn, err := websocket.Dial(ctx, m.cfg.Dial, m.target.String(), websocket.Options{ReadLimit: maxWelcome, Header: h})
	if hs, ok := errors.AsType[*websocket.HandshakeError](err); ok && (hs.Status == http.StatusUnauthorized || hs.Status == http.StatusForbidden) {
		return nil, fmt.Errorf("the gateway refuses the token: %w", err)
	}
	return conn, err
}

// joinText is join shape (a), for a gateway that does not know us by the header (section 1).
func (m *membership) joinText() []byte {
	return wire.Obj(wire.TextField("type", "join"), wire.TextField("space", m.link.Space), wire.TextField("token", string(m.token)),
		wire.TextField("participantId", m.link.Participant)).JSON()
}

// try joins once and leaves.
func (m *membership) try(ctx context.Context) error {
	conn, err := m.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, conn.Abort)
	defer stop()
	defer conn.Drain()
	defer conn.Close(websocket.CodeNormal, "")
	join := time.AfterFunc(joinAfter, func() { m.send(conn, m.joinText()) })
	defer join.Stop()
	late := time.AfterFunc(welcomeBy, conn.Abort)
	defer late.Stop()
	for {
		_, data, err := conn.Read()
		if err != nil {
			return fmt.Errorf("no welcome came: %w", err)
		}
		if e, ok := heardFrom(bytes.Clone(data)); ok && e.Kind == envelope.KindWelcome {
			return nil
		}
	}
}

func (m *membership) send(conn *websocket.Conn, data []byte) {
	if err := conn.Send(websocket.Text(data)); err != nil {
		m.log.Debug("send to the space", "err", err)
	}
}

// session is one connection, from the first byte to the last.
func (m *membership) session(ctx context.Context) error {
	conn, err := m.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close(websocket.CodeGoingAway, "") })
	defer stop()
	defer m.leave(conn)
	join := time.AfterFunc(joinAfter, func() { m.send(conn, m.joinText()) })
	defer join.Stop()
	late := time.AfterFunc(welcomeBy, conn.Abort)
	defer late.Stop()
	for {
		_, data, err := conn.Read()
		if err != nil {
			return m.closed(err)
		}
		if len(data) > 0 && data[0] == '#' { // of a stream: nothing of it is kept or passed on (MEW-L5)
			continue
		}
		j, ok := m.take(ctx, conn, bytes.Clone(data))
		if m.joined(conn) {
			join.Stop()
			late.Stop()
		}
		if ok {
			m.receive(j)
		}
	}
}

func (m *membership) joined(conn *websocket.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conn == conn
}

// closed says why a connection ended. Who was thrown out stays out until its owner acts.
func (m *membership) closed(err error) error {
	ce, ok := errors.AsType[*websocket.CloseError](err)
	if !ok || !ce.Remote {
		return err
	}
	switch ce.Code {
	case envelope.CloseKicked:
		m.fall("the space threw this node out")
	case envelope.CloseUnauthorized:
		return errors.New("the gateway refuses the token")
	case envelope.CloseReplaced:
		return errors.New("another connection took the name over")
	}
	return err
}

// leave forgets what belonged to a connection.
func (m *membership) leave(conn *websocket.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != conn {
		return
	}
	m.conn, m.space = nil, spaceState{me: m.space.me, caps: m.space.caps, shown: m.space.shown}
	m.pause.stop()
	for id, c := range m.echoes {
		delete(m.echoes, id)
		c <- outcome{err: errLinkEnded}
	}
}

func (m *membership) recall(ctx context.Context) error {
	rec, err := m.records.store.Get(ctx, nsLinks, m.link.Name+"/down", time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", m.link.Name, err)
	}
	m.mu.Lock()
	m.down = cmp.Or(string(rec.Body), "it was down before this start")
	m.mu.Unlock()
	m.standDown()
	return nil
}

// fall keeps the link down until the owner acts.
func (m *membership) fall(why string) {
	m.mu.Lock()
	m.down = why
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m.records.apply(ctx, store.Change{Record: store.Record{NS: nsLinks, Key: m.link.Name + "/down", Body: []byte(why)}, IfRev: store.Any})
}

// rise undoes fall.
func (m *membership) rise(ctx context.Context) {
	m.mu.Lock()
	m.down = ""
	m.mu.Unlock()
	m.records.apply(ctx, store.Change{Record: store.Record{NS: nsLinks, Key: m.link.Name + "/down"}, IfRev: store.Any, Delete: true})
	m.stand("connecting", nil, time.Time{})
}

// connect has the link try now, also one that is down.
func (m *membership) connect() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// view returns the space behind the link, as far as a participant sees it.
func (m *membership) view() view.Space {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.board.Expire(time.Now())
	out := view.Space{
		ID: m.link.Name, Name: m.link.Space, Participants: []view.Participant{}, Streams: []json.RawMessage{},
		Proposals: m.space.board.ListProposals(), Reasoning: m.space.board.ListReasoning(),
	}
	for _, v := range m.space.streams {
		out.Streams = append(out.Streams, v.JSON())
	}
	person := func(id string, caps wire.Value) view.Participant {
		p := view.Participant{Name: id, ID: id, Connected: true, Capabilities: []json.RawMessage{}}
		for v := range caps.Elems() {
			p.Capabilities = append(p.Capabilities, v.JSON())
		}
		return p
	}
	if m.conn == nil {
		return out
	}
	me := person(m.space.me, wire.Arr(m.space.shown...))
	me.Since, me.Paused, me.PausedUntil = m.since, m.pause.on, m.pause.until
	out.Participants = append(out.Participants, me)
	for id, caps := range m.space.people {
		out.Participants = append(out.Participants, person(id, caps))
	}
	slices.SortFunc(out.Participants[1:], func(a, b view.Participant) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// proposal finds a proposal that waits by its key, and returns our id beside it.
func (m *membership) proposal(key string) (p view.Proposal, me string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok = m.space.board.Find(key)
	return p, m.space.me, ok
}

// settle takes a proposal off the board.
func (m *membership) settle(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.board.Settle(key)
}

// follow notes whether the owner is still asked about a proposal.
func (m *membership) follow(conv wire.ConversationID, waits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.board.Follow(conv, waits)
}

// isOurs reports whether one of these envelopes is a proposal that was made to this node.
func (m *membership) isOurs(ids []string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.space.board.IsOurs(ids)
}

// check returns why an envelope cannot be sent now, nil if it can.
func (m *membership) check(d envelope.Draft) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sayable(d)
}

// pauseLeft returns how long our pause lasts, 0 if there is none or nobody knows.
func (m *membership) pauseLeft() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.pause.on || m.pause.until.IsZero() {
		return 0
	}
	return time.Until(m.pause.until)
}

// paused is a pause of ours (MEW-L5).
type paused struct {
	on    bool
	until time.Time // zero: until somebody resumes us
	by    string    // id of the pause
	timer *time.Timer
}

// err says that nothing may be sent, and until when.
func (p *paused) err() error {
	if p.until.IsZero() {
		return fmt.Errorf("%w until somebody resumes it", errPaused)
	}
	return fmt.Errorf("%w until %s", errPaused, envelope.FormatTime(p.until))
}

func (p *paused) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
	*p = paused{}
}
