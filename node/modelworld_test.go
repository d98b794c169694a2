package node_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// world is two nodes, a stranger who has no node, and what went over the wire between them.
type world struct {
	t     *trial
	mesh  *meshtest.Mesh
	sides []*side
	guest *meshtest.Stranger
	marks int // number of the newest mark; each payload has a mark of its own

	mu     sync.Mutex
	calls  []*call
	sent   map[wire.MessageID]wire.Message   // every message that was on the wire, answers included
	sync   map[wire.MessageID]wire.MessageID // what each synchronous answer answers
	came   map[wire.MessageID]bool           // the synchronous answers that arrived
	hooked int                               // runs of hooks
	alone  bool                              // a step posts something, and nothing else happens
}

// call is a message that was posted to a node.
type call struct {
	to  *side
	raw []byte
	m   wire.Message
}

// side is one of the nodes, in one process or in two.
type side struct {
	w       *world
	name    string
	id      wire.AgentID
	spec    *spec
	path    string
	db      *bolt.Store
	procsMu sync.Mutex
	procs   []*meshtest.Member
	made    int // processes so far
	turn    int // which process gets the next call

	busy    chan struct{} // held during a call
	commits atomic.Int64
	lost    int  // the next calls of the peer that are lost
	after   bool // lost after they were answered
	isDown  bool
	hooked  bool
	replies bool
	hook    int                    // what the hook does
	runs    map[wire.MessageID]int // of the hook
	working map[wire.MessageID]int // hooks that run now
	judging *heard
	refused map[wire.MessageID]bool // by the agent
	met     map[wire.AgentID]bool   // who has written to it
}

const (
	modelIdle = time.Hour
	modelHold = 3 * time.Hour
)

func newWorld(t *trial, config step) *world {
	w := &world{t: t, sent: make(map[wire.MessageID]wire.Message), sync: make(map[wire.MessageID]wire.MessageID), came: make(map[wire.MessageID]bool)}
	w.mesh = meshtest.Wired(t, w.carry)
	w.guest = w.mesh.Stranger("guest")
	for i, name := range []string{"ann", "bob"} {
		bits := []int{config.a, config.b}[i]
		s := &side{
			w: w, name: name, path: filepath.Join(t.TempDir(), name+".db"), busy: make(chan struct{}, 1), runs: make(map[wire.MessageID]int), working: make(map[wire.MessageID]int),
			met: make(map[wire.AgentID]bool), refused: make(map[wire.MessageID]bool), hooked: bits&1 != 0, replies: bits&2 != 0, hook: bits >> 8 & 7,
		}
		s.spec = newSpec([]acl.Mode{acl.Open, acl.Approval, acl.Approval, acl.Allowlist}[bits>>2&3], modelIdle)
		w.mu.Lock()
		w.sides = append(w.sides, s)
		w.mu.Unlock()
		s.open()
		t.Cleanup(s.shut)
		for range 1 + bits>>4&1 {
			s.start()
		}
	}
	ann, bob := w.sides[0], w.sides[1]
	for i, bits := range []int{config.a, config.b} {
		if bits>>5&1 != 0 {
			w.sides[i].setStanding(w.sides[1-i].id, "allow")
		}
	}
	t.Logf("ann %s %s hook %t replies %t, bob %s %s hook %t replies %t, guest %s", ann.id, ann.spec.mode, ann.hooked, ann.replies, bob.id, bob.spec.mode, bob.hooked, bob.replies, w.guest.ID)
	w.settle()
	return w
}

func (s *side) open() {
	var err error
	s.db, err = bolt.Open(context.Background(), s.path, bolt.Config{LeaseTTL: 30 * time.Second, InitialMmapSize: 1 << 20})
	if err != nil {
		s.w.t.Fatalf("open store: %v", err)
	}
}

// commits counts what a node commits, without the sums and lines that it writes at certain times.
type commits struct {
	store.Store
	n *atomic.Int64
}

func (c commits) Steps() store.Steps     { return committedSteps{c.Store.Steps(), c.n} }
func (c commits) Records() store.Records { return committedRecords{c.Store.Records(), c.n} }

type committedSteps struct {
	store.Steps
	n *atomic.Int64
}

func (c committedSteps) Apply(ctx context.Context, step store.Step) (store.Applied, error) {
	c.n.Add(1)
	return c.Steps.Apply(ctx, step)
}

type committedRecords struct {
	store.Records
	n *atomic.Int64
}

func (c committedRecords) Apply(ctx context.Context, changes []store.Change, now time.Time) error {
	for _, change := range changes {
		if ns := change.Record.NS; !strings.HasPrefix(ns, "audit") && change.Record.Key != "meter" {
			c.n.Add(1)
		}
	}
	return c.Records.Apply(ctx, changes, now)
}

func (s *side) shut() {
	for _, p := range s.procs {
		p.Stop()
	}
	s.setProcs(nil)
	if err := s.db.Close(); err != nil {
		s.w.t.Errorf("close store: %v", err)
	}
}

// start starts another process.
func (s *side) start() {
	var first *meshtest.Member
	if len(s.procs) > 0 {
		first = s.procs[0]
	}
	s.made++
	m := s.w.mesh.Process(s.name, commits{s.db.Handle(fmt.Sprint(s.name, " ", s.made)), &s.commits}, first, func(cfg *node.Config) {
		cfg.Policy.Mode, cfg.Rates, cfg.Idle, cfg.HoldFor = s.spec.mode, acl.Rates{}, modelIdle, modelHold
		if s.hooked {
			cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "agent", Handler: s, Repeatable: true, Replies: s.replies}}
		}
	})
	s.id = m.ID()
	if s.made == 1 {
		if _, err := m.Registrar().Register(context.Background(), ""); err != nil {
			s.w.t.Fatalf("register: %v", err)
		}
	}
	m.Start()
	s.setProcs(append(slices.Clone(s.procs), m))
}

// at returns one of the processes, or nil while the node restarts.
func (s *side) at(n int) *meshtest.Member {
	s.procsMu.Lock()
	defer s.procsMu.Unlock()
	if len(s.procs) == 0 {
		return nil
	}
	return s.procs[n%len(s.procs)]
}

func (s *side) setProcs(list []*meshtest.Member) {
	s.procsMu.Lock()
	defer s.procsMu.Unlock()
	s.procs = list
}

func (s *side) other() *side {
	if s.w.sides[0] == s {
		return s.w.sides[1]
	}
	return s.w.sides[0]
}

// settle lets everything happen that does not wait for a time.
func (w *world) settle() {
	for range 3 {
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
	}
	synctest.Wait()
}

// parties are the two nodes and the stranger.
func (w *world) party(id wire.AgentID) *side {
	for _, s := range w.sides {
		if s.id == id {
			return s
		}
	}
	return nil
}

// carry serves the calls to a party.
func (w *world) carry(to string, rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if to == w.guest.Name {
		w.carryToGuest(rw, r, body)
		return
	}
	w.mu.Lock()
	s := w.sides[slices.IndexFunc(w.sides, func(s *side) bool { return s.name == to })]
	isDown, isLost := s.isDown, r.Method == http.MethodPost && s.lost > 0 && !s.after
	if !isDown && isLost {
		s.lost--
	}
	w.mu.Unlock()
	if isLost {
		w.t.say("lost on the way to " + s.name)
	}
	if isDown || isLost || s.at(0) == nil {
		panic(http.ErrAbortHandler)
	}
	if r.Method != http.MethodPost {
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.at(0).Public.ServeHTTP(rw, r)
		return
	}
	a := s.post(body, false)
	w.mu.Lock()
	isLost = s.lost > 0
	s.lost = max(0, s.lost-1)
	w.mu.Unlock()
	if isLost {
		w.t.say("the answer of " + s.name + " is lost")
		panic(http.ErrAbortHandler)
	}
	w.heardAnswer(body, a)
	maps.Copy(rw.Header(), a.Header)
	rw.WriteHeader(a.Status)
	rw.Write(a.Body)
}

// carryToGuest answers for the stranger: it has received everything.
func (w *world) carryToGuest(rw http.ResponseWriter, r *http.Request, body []byte) {
	m, ok := w.parse(body)
	if r.Method != http.MethodPost || !ok {
		http.NotFound(rw, r)
		return
	}
	w.mu.Lock()
	w.leaves(m)
	w.mu.Unlock()
	d := w.guest.Draft(m.From, m.Intent, `{"action":"received"}`)
	d.Conversation = m.Conversation
	rw.Header().Set("Content-Type", "application/json")
	rw.Write(w.guest.Sign(d))
}

func (w *world) parse(raw []byte) (wire.Message, bool) {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return wire.Message{}, false
	}
	m, err := wire.ParseMessage(tree)
	return m, err == nil
}

// heardAnswer notes a synchronous answer that reached the node which posted body.
func (w *world) heardAnswer(body []byte, a meshtest.Answer) {
	m, ok := w.parse(body)
	w.mu.Lock()
	defer w.mu.Unlock()
	if from := w.party(m.From); ok && from != nil {
		if t := from.spec.talks[talkKey{m.To, m.Conversation}]; t != nil {
			t.last = time.Now()
			t.mayEnd = t.mayEnd || a.Status >= 400                     // AM-47
			t.suspends = t.suspends || a.Status == http.StatusAccepted // the other owner has a question (AM-40)
			if answer, ok := w.parse(a.Body); ok {
				w.came[answer.ID] = true
				t.mayEnd = t.mayEnd || isDeal(answer) || answer.Action() == wire.ActionClose
			}
		}
	}
}
