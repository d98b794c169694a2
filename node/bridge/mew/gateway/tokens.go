package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
)

// tokens maps the hashes of tokens to the participants that they admit. It does not store the tokens themselves.
type tokens struct {
	mu         sync.Mutex
	owners     map[credential.Hash]tokenOwner
	reload     func()    // adds the tokens that the operator has put into the token folder; may be nil
	lastReload time.Time // when reload was last called
}

type tokenOwner struct{ space, name string }

func newTokens() *tokens { return &tokens{owners: make(map[credential.Hash]tokenOwner)} }

func (t *tokens) add(hash credential.Hash, space, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owners[hash] = tokenOwner{space, name}
}

// claim adds a token of the configuration. It fails if the token admits another participant (MEW-D5).
func (t *tokens) claim(token, space, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	hash, owner := credential.HashOf(token), tokenOwner{space, name}
	if had, ok := t.owners[hash]; ok && had != owner {
		return fmt.Errorf("participants %s and %s have the same token; give each a token of its own", had.name, name)
	}
	t.owners[hash] = owner
	return nil
}

// lookup returns the participant that a token admits. For an unknown token it calls reload first, at most once a second
// (MEW-D5).
func (t *tokens) lookup(token string) (tokenOwner, bool) {
	hash := credential.HashOf(token)
	if owner, ok := t.find(hash); ok {
		return owner, true
	}
	t.mu.Lock()
	reload := t.reload
	if reload == nil || time.Since(t.lastReload) < time.Second {
		t.mu.Unlock()
		return tokenOwner{}, false
	}
	t.lastReload = time.Now()
	t.mu.Unlock()
	reload()
	return t.find(hash)
}

func (t *tokens) find(hash credential.Hash) (tokenOwner, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	owner, ok := t.owners[hash]
	return owner, ok
}

// hashesOf returns the hashes of the tokens that admit a participant.
func (t *tokens) hashesOf(space, name string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for hash, owner := range t.owners {
		if owner == (tokenOwner{space, name}) {
			out = append(out, hash.String())
		}
	}
	return out
}
