package meshtest

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Reference is a stand-in for the reference directory at /v1. It ignores the agent_id of a card and assigns its own,
// accepts only https endpoints, and keeps everything in memory. Like the original it has no mailboxes.
type Reference struct {
	mu    sync.Mutex
	cards map[wire.AgentID]referenceCard
}

type referenceCard struct {
	tree       wire.Value
	bearer     string
	registered time.Time
}

var _ http.Handler = (*Reference)(nil)

// Restart drops every card, as a restart of the process does.
func (r *Reference) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.cards)
}

// IDs returns the ids of all registered cards.
func (r *Reference) IDs() []wire.AgentID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.cards))
}

// ServeHTTP implements [http.Handler]. It checks changes in the order of the original: 401, 404, 403, 400.
func (r *Reference) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path, hasID := strings.CutPrefix(req.URL.Path, "/v1/agents/")
	id := wire.AgentID(path)
	card, found := r.cards[id]
	bearer := req.Header.Get("Authorization")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case !hasID && req.URL.Path != "/v1/agents", !hasID && req.Method != http.MethodPost, hasID && req.Method == http.MethodGet && !found:
		refuse(w, http.StatusNotFound, wire.AgentUnavailable)
	case hasID && req.Method == http.MethodGet:
		w.Write(card.tree.JSON())
	case bearer == "":
		refuse(w, http.StatusUnauthorized, wire.Unauthorized)
	case hasID && !found:
		refuse(w, http.StatusNotFound, wire.AgentUnavailable)
	case hasID && card.bearer != bearer:
		refuse(w, http.StatusForbidden, wire.Unauthorized)
	case req.Method == http.MethodDelete:
		delete(r.cards, id)
		w.WriteHeader(http.StatusNoContent)
	default:
		r.put(w, req, id, referenceCard{bearer: bearer, registered: card.registered})
	}
}

// put registers a card, or renews the card of id.
func (r *Reference) put(w http.ResponseWriter, req *http.Request, id wire.AgentID, card referenceCard) {
	body, err := io.ReadAll(req.Body)
	if err == nil {
		card.tree, err = wire.ParseObject(body)
	}
	if err != nil || !strings.HasPrefix(card.tree.GetStr("endpoint"), "https://") {
		refuse(w, http.StatusBadRequest, wire.InvalidMessage)
		return
	}
	now := time.Now()
	answer := []wire.Member{{Key: "expires_at", Value: wire.Text(wire.FormatTime(now.Add(30 * 24 * time.Hour)))}}
	status := http.StatusOK
	if req.Method == http.MethodPost {
		var random [8]byte
		rand.Read(random[:])
		id, card.registered, status = wire.AgentID("am_"+hex.EncodeToString(random[:])), now, http.StatusCreated
		answer = append(answer, wire.Member{Key: "registered_at", Value: wire.Text(wire.FormatTime(now))})
	}
	card.tree = card.tree.With("agent_id", wire.Text(string(id)))
	if r.cards == nil {
		r.cards = make(map[wire.AgentID]referenceCard)
	}
	r.cards[id] = card
	w.WriteHeader(status)
	w.Write(wire.Obj(append(answer, wire.Member{Key: "agent_id", Value: wire.Text(string(id))})...).JSON())
}

func refuse(w http.ResponseWriter, status int, code wire.Code) {
	w.WriteHeader(status)
	w.Write((&wire.Error{Code: code, Status: status, Message: "refused"}).AppendJSON(nil))
}
