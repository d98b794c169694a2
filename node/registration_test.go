package node_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// memoryDirectory is a directory in memory. If replace is set, it assigns that id to every card, like the reference
// directory, and its client must notice.
type memoryDirectory struct {
	assignedID string // the id that it assigns
	life       time.Duration
	expires    string // sent instead of the time of expiry

	mu     sync.Mutex
	down   bool
	reason string            // why the operator removed every card; "" if not
	cards  map[string]string // id to bearer
	calls  []string          // method and status
	at     []time.Time
	proven bool // the last registration came with a key proof
}

func (r *memoryDirectory) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status, id := r.answer(req)
	if req.Method != http.MethodGet {
		r.calls = append(r.calls, fmt.Sprint(req.Method, " ", status))
		r.at = append(r.at, time.Now())
	}
	w.WriteHeader(status)
	switch {
	case status == http.StatusNotFound && r.reason != "":
		w.Write(wire.ErrRemoved.At(r.reason).AppendJSON(nil))
	case status >= 400:
		w.Write(wire.ErrNoAgent.AppendJSON(nil))
	case req.Method == http.MethodGet:
		fmt.Fprintf(w, `{"agent_id":%q}`, id)
	case req.Method != http.MethodDelete:
		life := cmp.Or(r.life, 30*24*time.Hour)
		fmt.Fprintf(w, `{"agent_id":%q,"expires_at":%q}`, id, cmp.Or(r.expires, wire.FormatTime(time.Now().Add(life))))
	}
}

func (r *memoryDirectory) answer(req *http.Request) (status int, id string) {
	if r.down {
		return http.StatusServiceUnavailable, ""
	}
	id = strings.TrimPrefix(req.URL.Path, "/v1/agents/")
	bearer := req.Header.Get("Authorization")
	if req.Method == http.MethodPost {
		body, _ := io.ReadAll(req.Body)
		card, _ := wire.ParseObject(body)
		id = cmp.Or(r.assignedID, card.GetStr("agent_id"))
		if r.cards == nil {
			r.cards = make(map[string]string)
		}
		r.cards[id] = bearer
		r.proven = req.Header.Get(wire.HeaderKeyProof) != ""
		return http.StatusCreated, id
	}
	owner, ok := r.cards[id]
	switch {
	case !ok:
		return http.StatusNotFound, id
	case req.Method != http.MethodGet && bearer != owner:
		return http.StatusForbidden, id
	case req.Method == http.MethodDelete:
		delete(r.cards, id)
		return http.StatusNoContent, id
	}
	return http.StatusOK, id
}

// lose makes the directory forget every card.
func (r *memoryDirectory) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.cards)
}

func (r *memoryDirectory) setDown(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func (r *memoryDirectory) log() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

// registeredNode runs a node that joins the directories; directory i has the base https://directory-i.test/v1.
func registeredNode(t *testing.T, dir string, configure func(*node.Config), registries ...*memoryDirectory) (n *node.Node, stop func()) {
	t.Helper()
	noDeliver := func(*node.Node, context.Context) {} // Run delivers, and one worker must not run twice
	l := runLoneNode(t, dir, nil, noDeliver, func(cfg *node.Config) {
		for i, r := range registries {
			base := fmt.Sprintf("https://directory-%d.test/v1", i)
			cfg.Directories = append(cfg.Directories, client.NewDirectory(base, cfg.HTTP, client.InProcess(r)))
		}
		if configure != nil {
			configure(cfg)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("node: %v", err)
		}
		l.stop()
	})
	t.Cleanup(stop)
	return l.Node, stop
}

// listings returns the states of the node's registrations.
func listings(t *testing.T, n *node.Node) string {
	t.Helper()
	var parts []string
	for _, l := range n.Registrar().Listings() {
		parts = append(parts, string(l.State))
	}
	return strings.Join(parts, " ")
}

// TestNodeStaysListed: a node is registered at its start, renewed at half of the lifetime, and registered again
// after the directory lost it (AM-83).
func TestNodeStaysListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := &memoryDirectory{life: 2 * time.Hour}
		n, stop := registeredNode(t, dir, nil, r)
		defer stop()
		synctest.Wait()
		if got := fmt.Sprint(r.log()); got != "[POST 201]" || listings(t, n) != "registered" || !r.proven {
			t.Fatalf("at start: %s, %s, key proof %v", got, listings(t, n), r.proven)
		}
		time.Sleep(75 * time.Minute)
		synctest.Wait()
		if got := fmt.Sprint(r.log()); got != "[POST 201 PUT 200]" {
			t.Fatalf("after 75 of 120 minutes: %s", got)
		}
		if gap := r.at[1].Sub(r.at[0]); gap < 54*time.Minute || gap > 66*time.Minute {
			t.Errorf("renewed after %v, want an hour plus or minus a tenth", gap)
		}
		r.lose()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if got := r.log(); got[len(got)-1] != "POST 201" {
			t.Errorf("20 minutes after the directory lost the card: %v", got)
		}

		// A restart neither registers again nor changes the credential.
		before := len(r.log())
		stop()
		n, stop = registeredNode(t, dir, nil, r)
		defer stop()
		synctest.Wait()
		if got := r.log(); len(got) != before || listings(t, n) != "registered" {
			t.Errorf("after a restart: %v, %s", got[before:], listings(t, n))
		}
		if _, err := n.Registrar().Register(t.Context(), ""); err != nil || r.log()[before] != "PUT 200" {
			t.Errorf("register on command: %v, %v", r.log()[before:], err)
		}
	})
}

// TestRegistrationErrors: the status shows an error and the next attempt, and a failing directory does not delay
// another.
func TestRegistrationErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := &memoryDirectory{down: true}, &memoryDirectory{}
		n, stop := registeredNode(t, t.TempDir(), nil, bad, good)
		defer stop()
		synctest.Wait()
		if got := listings(t, n); got != "pending registered" {
			t.Fatalf("listings: %s", got)
		}
		l := n.Registrar().Listings()[0]
		if l.Error == "" || strings.Contains(l.Error, "Bearer") || time.Until(l.Next) > 10*time.Second {
			t.Errorf("listing: %+v", l)
		}
		time.Sleep(2 * time.Hour)
		if tries := len(bad.log()); tries < 5 || tries > 8 {
			t.Errorf("%d tries in two hours", tries)
		}
		bad.setDown(false)
		time.Sleep(75 * time.Minute)
		synctest.Wait()
		if l := n.Registrar().Listings()[0]; l.State != owner.Registered || l.Error != "" {
			t.Errorf("after it is up again: %+v", l)
		}
	})
}

// TestNodeWithdraws: a withdrawal holds over a restart, until the owner registers the node again.
func TestNodeWithdraws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		a, b := &memoryDirectory{}, &memoryDirectory{}
		n, stop := registeredNode(t, dir, nil, a, b)
		defer stop()
		synctest.Wait()
		if _, err := n.Registrar().Withdraw(t.Context(), "https://elsewhere.test/v1"); err == nil {
			t.Error("withdrawn from a directory that is not configured")
		}
		if _, err := n.Registrar().Withdraw(t.Context(), "https://directory-0.test/v1"); err != nil {
			t.Fatal(err)
		}
		stop()
		n, stop = registeredNode(t, dir, nil, a, b)
		defer stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := listings(t, n); got != "withdrawn registered" || len(a.cards) != 0 {
			t.Errorf("listings %s, %d cards", got, len(a.cards))
		}
		if _, err := n.Registrar().Register(t.Context(), ""); err != nil || listings(t, n) != "registered registered" {
			t.Errorf("registered again: %s, %v", listings(t, n), err)
		}
	})
}

// TestOperatorRemovesCard: a node whose card the operator removed does not register again by itself, at a check or at a
// renewal. The owner hears the reason, as one line of inert text, and may register again.
func TestOperatorRemovesCard(t *testing.T) {
	for _, after := range []time.Duration{20 * time.Minute, 16 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			a := &memoryDirectory{}
			n, stop := registeredNode(t, dir, nil, a)
			defer stop()
			synctest.Wait()
			if after > time.Hour { // the directory cannot be asked until the renewal is due
				a.setDown(true)
				time.Sleep(after)
			}
			a.lose()
			a.mu.Lock()
			a.reason, a.down = "sends advertising\n\u202e\x1b[2J"+strings.Repeat("x", 1000), false
			a.mu.Unlock()
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			l := n.Registrar().Listings()[0]
			if l.State != owner.Removed || !strings.HasPrefix(l.Error, "the operator of https://directory-0.test/v1 removed the card: sends advertising ") || len(l.Error) > 400 || strings.ContainsAny(l.Error, "\n\u202e\x1b") {
				t.Errorf("after %v: %s %q", after, l.State, l.Error)
			}
			stop()
			n, stop = registeredNode(t, dir, nil, a)
			defer stop()
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			if listings(t, n) != "removed" || len(a.cards) != 0 {
				t.Errorf("after %v and a restart: %s, %d cards", after, listings(t, n), len(a.cards))
			}
			notices, err := n.OwnerAPI().ListNotices(t.Context(), owner.Query{Limit: 10})
			count := 0
			for _, notice := range notices.Items {
				if notice.Kind == "removed" && strings.Contains(notice.Text, "sends advertising") {
					count++
				}
			}
			if err != nil || count != 1 {
				t.Errorf("after %v: %d notices of %+v, %v", after, count, notices.Items, err)
			}
			if _, err := n.Registrar().Register(t.Context(), ""); err != nil || listings(t, n) != "registered" {
				t.Errorf("registered again: %s, %v", listings(t, n), err)
			}
		})
	}
}

// TestWithdrawWithoutRecord: a directory may list us although we have no record of it. A withdrawal still asks
// the directory, and the listing shows its answer.
func TestWithdrawWithoutRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &memoryDirectory{}
		_, stop := registeredNode(t, t.TempDir(), nil, a)
		synctest.Wait()
		stop()
		a.setDown(true)
		n, stop := registeredNode(t, t.TempDir(), nil, a)
		defer stop()
		synctest.Wait()
		a.setDown(false)
		if _, err := n.Registrar().Withdraw(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		l := n.Registrar().Listings()[0]
		if listed := len(a.cards) != 0; l.State != owner.Withdrawn || listed != (l.Error != "") {
			t.Errorf("listed %v, but the state is %q with error %q", listed, l.State, l.Error)
		}
		if last := a.log()[len(a.log())-1]; !strings.HasPrefix(last, "DELETE") {
			t.Errorf("the last request to the directory was %q", last)
		}
	})
}

// TestNodeAdoptsID: the first directory may assign an id to the node, durably; a second one may not (AM-57).
func TestNodeAdoptsID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		reference, other, own := &memoryDirectory{assignedID: "am_0123456789abcdef"}, &memoryDirectory{assignedID: "am_fedcba9876543210"}, &memoryDirectory{}
		n, stop := registeredNode(t, dir, nil, reference, other, own)
		defer stop()
		synctest.Wait()
		if n.ID() != "am_0123456789abcdef" || n.Card().Tree.GetStr("agent_id") != "am_0123456789abcdef" {
			t.Errorf("the node is %s", n.ID())
		}
		if got := listings(t, n); got != "registered pending registered" {
			t.Errorf("listings: %s", got)
		}
		if len(other.cards) != 0 || own.cards["am_0123456789abcdef"] == "" {
			t.Errorf("the other directory lists %v, ours lists %v", other.cards, own.cards)
		}
		if reference.cards["am_0123456789abcdef"] == own.cards["am_0123456789abcdef"] {
			t.Error("two directories got the same bearer")
		}
		stop()
		n, stop = registeredNode(t, dir, nil, reference)
		defer stop()
		synctest.Wait()
		if n.ID() != "am_0123456789abcdef" {
			t.Errorf("after a restart the node is %s", n.ID())
		}
	})
}

// TestExpiryWithoutUTC: a directory that names an expiry outside of the years that UTC can be written in gets a failed
// registration, and the node goes on.
func TestExpiryWithoutUTC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &memoryDirectory{expires: "9999-12-31T23:59:59-23:59"}
		n, stop := registeredNode(t, t.TempDir(), nil, r)
		defer stop()
		time.Sleep(time.Minute)
		if l := n.Registrar().Listings(); len(l) != 1 || l[0].State == "registered" || l[0].Error == "" {
			t.Errorf("the listing is %+v", l)
		}
	})
}
