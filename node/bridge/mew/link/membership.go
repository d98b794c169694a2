package link

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// membership is the node's part in a space: the connection, what the link knows of the space, and what it sends there.
// One goroutine reads the connection, keeps track of the space and obeys control messages at once.
type membership struct {
	cfg     *Config
	link    *bridge.Link
	token   client.Credential
	target  *url.URL
	log     *slog.Logger
	records *records
	receive func(job)      // queues an envelope for the node
	keeper  *bridge.Keeper // admits one attempt to join at a time: a second one would end the first (MEW-J5)
	feeds   waiting.Feeds[[]byte]
	// onReachable is called with a participant that can be reached again, or with wholeSpace when this node can send
	// again.
	onReachable func(peer string)

	echoPatience time.Duration // how long say waits until the gateway sends our envelope back

	mu     sync.Mutex
	down   string          // why the link stays down until its owner connects it; empty: it connects by itself
	conn   *websocket.Conn // nil: the node is not in the space
	space  spaceState
	pause  pauseState
	echoes map[string]chan outcome // by envelope id: the calls of sayForAnswer that wait
}

// wholeSpace stands for everybody in the space, in place of the id of one participant.
const wholeSpace = ""

func (m *membership) status() bridge.LinkStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.keeper.Status()
	s.Peers = len(m.space.participants)
	return s
}

// run keeps the node in the space until ctx ends: it connects again after each end of the connection.
func (m *membership) run(ctx context.Context) {
	m.keeper.Run(ctx, func(ctx context.Context) bridge.End {
		var err error
		if !m.isDown() {
			err = m.runSession(ctx)
		}
		if m.isDown() {
			return bridge.End{Fault: m.downFault(), Down: true}
		}
		return bridge.End{Fault: envelope.ToPrintable(fmt.Sprint(err), 300)}
	})
}

func (m *membership) isDown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down != ""
}

// downFault tells the owner why the link is down, and what to do.
func (m *membership) downFault() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return envelope.ToPrintable(m.down+"; run agentmesh mew connect to join again", 300)
}

// dial connects to the gateway. The caller must call stopTimers when the welcome comes. After joinAfter without a
// welcome, the link sends a join message, for a gateway that ignores the token in the header, and after welcomeBy the
// connection ends.
func (m *membership) dial(ctx context.Context) (conn *websocket.Conn, stopTimers func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, welcomeBy)
	defer cancel()
	h := http.Header{"Authorization": {"Bearer " + string(m.token)}}
	conn, err = websocket.Dial(ctx, m.cfg.Dial, m.target.String(), websocket.Options{ReadLimit: maxWelcome, Header: h})
	if hs, ok := errors.AsType[*websocket.HandshakeError](err); ok && (hs.Status == http.StatusUnauthorized || hs.Status == http.StatusForbidden) {
		return nil, nil, fmt.Errorf("the gateway refuses the token: %w", err)
	} else if ok && hs.Status == http.StatusBadRequest {
		return nil, nil, &bridge.LinkFault{Why: fmt.Errorf("the gateway refuses the connection: %w", err), Fix: "check the url, and name the space with --space or space"}
	} else if err != nil {
		return nil, nil, err
	}
	join := time.AfterFunc(joinAfter, func() {
		message := wire.Obj(wire.TextField("type", "join"), wire.TextField("space", m.link.Space), wire.TextField("token", string(m.token)),
			wire.TextField("participantId", m.link.Participant))
		if err := conn.Send(websocket.Text(message.JSON())); err != nil {
			m.log.Debug("send to the space", "err", err)
		}
	})
	timeout := time.AfterFunc(welcomeBy, conn.Abort)
	return conn, func() { join.Stop(); timeout.Stop() }, nil
}

// testJoin joins the space once and leaves. It does nothing if the node is in the space.
func (m *membership) testJoin(ctx context.Context) error {
	done, err := m.keeper.Dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	if m.status().State == bridge.LinkUp {
		return nil
	}
	conn, stopTimers, err := m.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, conn.Abort)
	defer stop()
	defer conn.Drain()
	defer conn.Close(websocket.CodeNormal, "")
	defer stopTimers()
	for {
		_, data, err := conn.Read()
		if err != nil {
			return fmt.Errorf("the gateway sent no welcome: %w", err)
		}
		if e, ok := parseFromGateway(bytes.Clone(data)); ok && e.Kind == envelope.KindWelcome {
			return nil
		}
	}
}

// runSession joins the space and handles its messages until the connection ends.
func (m *membership) runSession(ctx context.Context) error {
	done, err := m.keeper.Dial(ctx)
	if err != nil {
		return err
	}
	defer done()
	conn, stopTimers, err := m.dial(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close(websocket.CodeGoingAway, "") })
	defer stop()
	defer m.leave(conn)
	defer stopTimers()
	for {
		_, data, err := conn.Read()
		if err != nil {
			return m.endReason(err)
		}
		if len(data) > 0 && data[0] == '#' { // a stream frame: it is neither stored nor forwarded (MEW-L5)
			continue
		}
		j, ok := m.handle(ctx, conn, bytes.Clone(data))
		if m.isJoined(conn) {
			stopTimers()
			done()
		}
		if ok {
			m.receive(j)
		}
	}
}

func (m *membership) isJoined(conn *websocket.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conn == conn
}

// endReason returns why a connection ended. A node that was kicked stays out until its owner acts.
func (m *membership) endReason(err error) error {
	ce, ok := errors.AsType[*websocket.CloseError](err)
	if !ok || !ce.Remote {
		return err
	}
	switch ce.Code {
	case envelope.CloseKicked:
		m.setDown("a participant removed this node from the space")
	case envelope.CloseUnauthorized:
		return errors.New("the gateway refuses the token")
	case envelope.CloseReplaced:
		return errors.New("another connection took over the name")
	}
	return err
}

// leave drops the state of a connection that ended.
func (m *membership) leave(conn *websocket.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != conn {
		return
	}
	m.conn, m.space = nil, spaceState{me: m.space.me, caps: m.space.caps, rawCaps: m.space.rawCaps}
	m.pause.stop()
	for id, c := range m.echoes {
		delete(m.echoes, id)
		c <- outcome{err: errLinkEnded}
	}
}

// load restores the effect of an earlier setDown.
func (m *membership) load(ctx context.Context) error {
	rec, err := m.records.store.Get(ctx, nsLinks, m.link.Name+"/down", time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", m.link.Name, err)
	}
	m.mu.Lock()
	m.down = cmp.Or(string(rec.Body), "the link was down before this start")
	m.mu.Unlock()
	m.keeper.Set(bridge.LinkDown, m.downFault())
	return nil
}

// setDown keeps the link down until the owner connects it again, also after a restart.
func (m *membership) setDown(reason string) {
	m.mu.Lock()
	m.down = reason
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m.records.apply(ctx, store.Change{Record: store.Record{NS: nsLinks, Key: m.link.Name + "/down", Body: []byte(reason)}, IfRev: store.Any})
}

// connect makes the link connect now, even if it is down. It has no effect on a link that is connected.
func (m *membership) connect() {
	m.mu.Lock()
	isJoined, wasDown := m.conn != nil, m.down != ""
	if !isJoined {
		m.down = ""
	}
	m.mu.Unlock()
	if isJoined {
		return
	}
	if wasDown {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		m.records.apply(ctx, store.Change{Record: store.Record{NS: nsLinks, Key: m.link.Name + "/down"}, IfRev: store.Any, Delete: true})
	}
	m.keeper.Wake()
}

func (m *membership) view() view.Space {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.space.board.Expire(time.Now())
	out := view.Space{
		ID: m.link.Name, Name: m.link.Space, Participants: []view.Participant{}, Streams: []json.RawMessage{},
		Proposals: m.space.board.ListProposals(), Reasoning: m.space.board.ListReasoning(),
	}
	if m.conn == nil {
		return out
	}
	describe := func(id string) view.Participant {
		return view.Participant{Name: id, ID: id, Connected: true, Capabilities: []json.RawMessage{}}
	}
	me := describe(m.space.me)
	for _, v := range m.space.rawCaps {
		me.Capabilities = append(me.Capabilities, v.JSON())
	}
	me.Since, me.Paused, me.PausedUntil = m.keeper.Status().Since, m.pause.on, m.pause.until
	out.Participants = append(out.Participants, me)
	for id := range m.space.participants {
		out.Participants = append(out.Participants, describe(id))
	}
	slices.SortFunc(out.Participants[1:], func(a, b view.Participant) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// claimProposal returns the pending proposal with a key, and the id of this node in the space. It marks a proposal to
// others as decided, so that nobody else can claim it; if the decision cannot be sent, the caller removes the mark. It
// does not mark a proposal to this node, because the question to the owner can be decided only once.
func (m *membership) claimProposal(key string) (p view.Proposal, me string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok = m.space.board.Find(key)
	if p.Conv == "" { // to others: the owner was not asked in a conversation
		m.space.board.SetDecided(p.Key, true)
	}
	return p, m.space.me, ok
}

// withBoard calls do with the board of the space.
func (m *membership) withBoard(do func(*view.Board)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do(&m.space.board)
}

func (m *membership) isToNode(ids []string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.space.board.ProposerToNode(ids) != ""
}

// check returns why an envelope cannot be sent now, or nil if it can.
func (m *membership) check(d envelope.Draft) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.checkSend(d)
}

// pauseLeft returns how long the pause of this node lasts, 0 if the node is not paused or the pause has no end.
func (m *membership) pauseLeft() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.pause.on || m.pause.until.IsZero() {
		return 0
	}
	return time.Until(m.pause.until)
}

// pauseState is the pause of this node (MEW-L5).
type pauseState struct {
	on    bool
	until time.Time // zero: until a participant resumes the node
	cause string    // id of the envelope that began the pause
	timer *time.Timer
}

// err returns errPaused with the end of the pause.
func (p *pauseState) err() error {
	if p.until.IsZero() {
		return fmt.Errorf("%w until a participant resumes it", errPaused)
	}
	return fmt.Errorf("%w until %s", errPaused, envelope.FormatTime(p.until))
}

func (p *pauseState) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
	*p = pauseState{}
}
