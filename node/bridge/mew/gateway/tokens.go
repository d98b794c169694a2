package gateway

import (
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/store"
)

// accounts are the participants of all spaces to which tokens admit, by "space/name".
type accounts = credential.Registry[memberRecord, *memberRecord]

func newAccounts(records store.Records) *accounts {
	return credential.NewRegistry[memberRecord](credential.Config[*memberRecord]{Records: records, NS: nsMembers})
}

// claim adds a token of the configuration. It fails if the token admits another participant (MEW-D5).
func (g *Gateway) claim(token, space, name string) error {
	if err := g.accounts.Claim(token, newMemberRecord(space, name)); err != nil {
		return fmt.Errorf("participant %s has the token of another participant; give each a token of its own", name)
	}
	return nil
}

// lookup returns the participant that a token admits, or nil. For an unknown token it reads the token folder again, at
// most once a second (MEW-D5).
func (g *Gateway) lookup(token string) *memberRecord {
	rec := g.accounts.Find(token)
	if rec != nil || g.cfg.Reload == nil {
		return rec
	}
	g.mu.Lock()
	isEarly := time.Since(g.reloaded) < time.Second
	if !isEarly {
		g.reloaded = time.Now()
	}
	g.mu.Unlock()
	if isEarly {
		return nil
	}
	g.cfg.Reload(g.claim)
	return g.accounts.Find(token)
}

// admits reports whether a token that was issued for m is still valid. After a kick, only that of a later invite is.
func (m *member) admits(key credential.Hash) bool {
	return !m.record.Barred && (!m.record.Kicked || key.Equal(m.record.Key))
}
