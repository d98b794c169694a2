package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
)

// tokens maps the hashes of tokens to whom they admit. A token is never kept itself.
type tokens struct {
	mu     sync.Mutex
	owners map[credential.Hash]tokenOwner
	reload func() error // looks for new tokens; nil: there are none outside
	loaded time.Time

	keep func(name, token string) error // puts the token of an invited participant where it is looked for; nil: nowhere
}

type tokenOwner struct{ space, name string }

func newTokens() *tokens { return &tokens{owners: make(map[credential.Hash]tokenOwner)} }

func (t *tokens) add(hash credential.Hash, space, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owners[hash] = tokenOwner{space, name}
}

// claim is add for a token of the configuration, which must not admit two participants (MEW-D5).
func (t *tokens) claim(token, space, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	hash, owner := credential.HashOf(token), tokenOwner{space, name}
	if had, ok := t.owners[hash]; ok && had != owner {
		return fmt.Errorf("participants %s and %s have the same token", had.name, name)
	}
	t.owners[hash] = owner
	return nil
}

// lookup says whom a token admits. One that is not known makes it look outside, at most once a second (MEW-D5).
func (t *tokens) lookup(token string) (tokenOwner, bool) {
	hash := credential.HashOf(token)
	if owner, ok := t.find(hash); ok {
		return owner, true
	}
	t.mu.Lock()
	reload := t.reload
	if reload == nil || time.Since(t.loaded) < time.Second {
		t.mu.Unlock()
		return tokenOwner{}, false
	}
	t.loaded = time.Now()
	t.mu.Unlock()
	if reload() != nil {
		return tokenOwner{}, false
	}
	return t.find(hash)
}

func (t *tokens) find(hash credential.Hash) (tokenOwner, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	owner, ok := t.owners[hash]
	return owner, ok
}

// of lists the hashes of a participant's tokens.
func (t *tokens) of(space, name string) []string {
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

// restoreToken lets the token of an invited participant in again after a restart.
func (g *Gateway) restoreToken(s *Space, m *member, hexHash string) error {
	var hash credential.Hash
	if err := hash.UnmarshalText([]byte(hexHash)); err != nil || hexHash == "" {
		return fmt.Errorf("participant %s of space %s: its token's hash is damaged", m.name, s.cfg.ID)
	}
	g.tokens.add(hash, s.cfg.ID, m.name)
	return nil
}
