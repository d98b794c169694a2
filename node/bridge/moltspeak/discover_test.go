package moltspeak

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// cards is a directory with fixed cards.
type cards []string

func (c cards) Search(context.Context, client.Query) (wire.Listing, error) {
	var l wire.Listing
	for _, text := range c {
		v, err := wire.Parse([]byte(text))
		if err != nil {
			return l, err
		}
		l.Agents = append(l.Agents, v)
	}
	return l, nil
}

func (c cards) Record(_ context.Context, id wire.AgentID) (wire.CardRecord, error) {
	l, err := c.Search(context.Background(), client.Query{})
	for _, card := range l.Agents {
		if card.GetStr("agent_id") == string(id) {
			return wire.CardRecord{Card: card, Verification: l.Verification[id]}, err
		}
	}
	return wire.CardRecord{}, client.ErrUnknownAgent
}

const listedCard = `{"agent_id":"am_x","name":"X","description":"talks","capabilities":["talk"],"metadata":{"moltspeak":"https://x.example/moltspeak/v0.1","moltspeak_agent":"am_x@agentmesh","moltspeak_key":"ed25519:AAAA"}}`

// broken is a directory that does not answer.
type broken struct{}

func (broken) Search(context.Context, client.Query) (wire.Listing, error) {
	return wire.Listing{}, wire.ErrUnavailable
}

func (broken) Record(context.Context, wire.AgentID) (wire.CardRecord, error) {
	return wire.CardRecord{}, wire.ErrUnavailable
}

// TestDiscover: all directories are asked, each agent is listed once, and a directory that does not answer does not
// block the others.
func TestDiscover(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) {
		c.Directories = []Directory{broken{}, cards{`{"agent_id":"am_z","name":"Z"}`, listedCard}, cards{listedCard}}
	})
	m, _ := r.say(cat, r.draft(cat, message.OpDiscover, `{"capability":"talk"}`))
	if text := string(m.P.JSON()); !strings.Contains(text, `"endpoint":"https://x.example/moltspeak/v0.1"`) || !strings.Contains(text, `"agent":"am_x@agentmesh"`) || !strings.Contains(text, `"org":"agentmesh"`) || strings.Count(text, `"am_x"`) != 1 || !strings.Contains(text, `"am_z"`) {
		t.Errorf("results: %s", text)
	}
	r, _ = newTestRig(t, func(c *Config) { c.Directories = []Directory{broken{}} })
	if code := r.code(cat, r.draft(cat, message.OpDiscover, `{"capability":"talk"}`)); code != message.CodeTimeout {
		t.Errorf("no directory answers: %q", code)
	}
}

// asked is a directory that keeps the capabilities of each search.
type asked struct {
	cards
	searches *[]string
}

func (a asked) Search(_ context.Context, q client.Query) (wire.Listing, error) {
	*a.searches = append(*a.searches, strings.Join(q.Capabilities, "+"))
	return wire.Listing{}, nil
}

// TestDiscoverAllAndAny: an agent that has all of some capabilities and any of others has all of the first and at least
// one of the others.
func TestDiscoverAllAndAny(t *testing.T) {
	for p, want := range map[string]string{
		`{"capability":"a"}`: "a", `{"capabilities":{"all":["a","b"]}}`: "a+b", `{"capabilities":{"any":["x","y"]}}`: "x y",
		`{"capabilities":{"all":["a","b"],"any":["x","y"]}}`: "a+b+x a+b+y", `{"capability":"a","capabilities":{"any":["x"]}}`: "a+x",
	} {
		var searches []string
		r, _ := newTestRig(t, func(c *Config) { c.Directories = []Directory{asked{searches: &searches}} })
		if code := r.code(cat, r.draft(cat, message.OpDiscover, p)); code != "" || strings.Join(searches, " ") != want {
			t.Errorf("%s: %q, searches %q, want %s", p, code, searches, want)
		}
	}
}

// TestDiscoverRefusesManyAlternatives: a discover with more alternatives than the node searches for is refused.
func TestDiscoverRefusesManyAlternatives(t *testing.T) {
	r, _ := newTestRig(t, func(c *Config) { c.Directories = []Directory{cards{listedCard}} })
	m, _ := r.say(cat, r.draft(cat, message.OpDiscover, `{"capabilities":{"any":["a","b","c","d","e","f"]}}`))
	if m.P.GetStr("code") != string(message.CodeInvalidParam) || m.P.GetStr("field") != "p.capabilities.any" {
		t.Errorf("answered %s", m.P.JSON())
	}
}

// searched counts the searches in a directory without cards.
type searched struct {
	cards
	times *int
}

func (s searched) Search(context.Context, client.Query) (wire.Listing, error) {
	*s.times++
	return wire.Listing{}, nil
}

// TestStrangersPayForSearches: a stranger that asks for agents with any of five capabilities pays for five searches, so
// that it cannot make the node search more often than it may write.
func TestStrangersPayForSearches(t *testing.T) {
	for peer, most := range map[string]int{"owl@acme": 200, cat: 300} {
		times := 0
		r, _ := newTestRig(t, func(c *Config) { c.Directories = []Directory{searched{times: &times}} })
		answered := 0
		for range 60 {
			if r.code(peer, r.draft(peer, message.OpDiscover, `{"capabilities":{"any":["a","b","c","d","e"]}}`)) == "" {
				answered++
			}
		}
		if slack := 25; times > most+slack || times < most-slack || times != 5*answered { // some quota comes back while the test runs
			t.Errorf("%s caused %d searches with %d answers, want about %d searches", peer, times, answered, most)
		}
	}
}

// meeting is a directory whose searches wait until two of them run.
type meeting struct {
	cards
	both *sync.WaitGroup
}

func (m meeting) Search(context.Context, client.Query) (wire.Listing, error) {
	m.both.Done()
	m.both.Wait()
	return wire.Listing{}, nil
}

// TestCopiesAtTheSameMoment: of two copies of a message that arrive at the same moment both get an answer, but only one
// counts as fresh. Two messages with the same id and other content do not both get one (MS-30).
func TestCopiesAtTheSameMoment(t *testing.T) {
	for name, other := range map[string]string{"copies": `{"capability":"a"}`, "other content": `{"capability":"b"}`} {
		var both sync.WaitGroup
		both.Add(2)
		r, _ := newTestRig(t, func(c *Config) { c.Directories = []Directory{meeting{both: &both}} })
		r.say(cat, r.draft(cat, message.OpPing, `{"nonce":1}`)) // pins the key
		d := r.draft(cat, message.OpDiscover, `{"capability":"a"}`)
		first := r.sign(cat, d)
		d.P = mustTree(t, other)
		second := r.sign(cat, d)
		replies := make(chan Response)
		for _, raw := range [][]byte{first, second} {
			go func() { replies <- r.b.Receive(t.Context(), raw, nil, nil) }()
		}
		a, b := <-replies, <-replies
		if name == "copies" && (a.Status != http.StatusOK || b.Status != http.StatusOK || a.Fresh == b.Fresh) {
			t.Errorf("copies: %d %s fresh %v, %d %s fresh %v", a.Status, a.Body, a.Fresh, b.Status, b.Body, b.Fresh)
		}
		if name != "copies" && a.Status+b.Status != http.StatusOK+http.StatusConflict {
			t.Errorf("other content: %d and %d", a.Status, b.Status)
		}
	}
}
