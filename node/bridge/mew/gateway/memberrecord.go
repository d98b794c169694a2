package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsMembers is the namespace of participants' records, by "space/name" (MEW-Q5).
const nsMembers = "mew-members"

// memberRecord is the stored part of a participant, which survives disconnects and restarts (MEW-29). A record in use
// is never changed, only replaced.
type memberRecord struct {
	credential.Account                   // its key is the token from its last invite
	Space              string            `json:"space"`
	Name               string            `json:"name"`
	Invited            bool              `json:"invited,omitempty"`
	Since              time.Time         `json:"since,omitzero"`         // start of the history that the participant may read
	Own                []json.RawMessage `json:"capabilities,omitempty"` // the capabilities from its last invite
	Grants             []*grant          `json:"grants,omitempty"`
	RevokedRules       []string          `json:"masks,omitempty"`  // the rule of each own capability that was revoked
	Barred             bool              `json:"barred,omitempty"` // it was kicked and not invited again
	Kicked             bool              `json:"kicked,omitempty"` // so its configured tokens are revoked

	own []capability.Capability // Own, compiled
}

// grant holds the capabilities that one participant gave to another with one envelope (MEW-21, MEW-25).
type grant struct {
	Key     string            `json:"key"` // unique; the gateway chose it
	ID      string            `json:"id"`  // id of the envelope
	By      string            `json:"by"`  // name of the granter
	At      time.Time         `json:"at"`
	Caps    []json.RawMessage `json:"capabilities"`
	RestsOn []string          `json:"rests_on"` // for each capability, the key of the granter's capability on which it rests

	caps []capability.Capability // Caps, compiled
}

// filter returns the grant with only the capabilities for which keep returns true, or nil if none remain.
func (g *grant) filter(keep func(i int) bool) *grant {
	out := &grant{Key: g.Key, ID: g.ID, By: g.By, At: g.At}
	for i := range g.caps {
		if keep(i) {
			out.Caps = append(out.Caps, g.Caps[i])
			out.RestsOn = append(out.RestsOn, g.RestsOn[i])
			out.caps = append(out.caps, g.caps[i])
		}
	}
	if len(out.caps) == 0 {
		return nil
	}
	return out
}

func encodeAll(list []capability.Capability) []json.RawMessage {
	out := make([]json.RawMessage, len(list))
	for i, c := range list {
		out[i] = c.Value().JSON()
	}
	return out
}

func compileAll(list []json.RawMessage) ([]capability.Capability, error) {
	out := make([]capability.Capability, len(list))
	for i, raw := range list {
		v, err := wire.ParseForeign(raw, envelope.MaxDepth, envelope.MaxValues)
		if err != nil {
			return nil, err
		}
		if out[i], err = capability.Parse(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func newMemberRecord(space, name string) *memberRecord {
	return &memberRecord{Account: credential.Account{ID: space + "/" + name}, Space: space, Name: name}
}

// compile compiles the capabilities of a record from the store.
func (rec *memberRecord) compile() (err error) {
	if rec.own, err = compileAll(rec.Own); err != nil {
		return err
	}
	for _, g := range rec.Grants {
		if g.caps, err = compileAll(g.Caps); err != nil {
			return err
		}
		if len(g.RestsOn) != len(g.caps) {
			return errors.New("a grant lacks keys of the capabilities on which it rests")
		}
	}
	return nil
}

func (rec *memberRecord) clone() *memberRecord {
	c := *rec
	c.Grants, c.RevokedRules = slices.Clone(rec.Grants), slices.Clone(rec.RevokedRules)
	return &c
}

// edit collects changes of participants' records. All of them are stored before any of them takes effect (MEW-Q5).
type edit struct {
	s       *Space
	order   []*member
	changed map[*member]*memberRecord
	more    []store.Change // other changes that are stored with them
}

func (s *Space) newEdit() *edit { return &edit{s: s, changed: make(map[*member]*memberRecord)} }

// record returns a copy of the record of m that the caller may change.
func (e *edit) record(m *member) *memberRecord {
	if rec := e.changed[m]; rec != nil {
		return rec
	}
	rec := m.record.clone()
	e.changed[m] = rec
	e.order = append(e.order, m)
	return rec
}

// current returns the record of m with the changes so far. The caller must not change it.
func (e *edit) current(m *member) *memberRecord {
	if rec := e.changed[m]; rec != nil {
		return rec
	}
	return m.record
}

const storeTimeout = 10 * time.Second

// commit stores the changes and the audit entries together, and then applies the changes.
func (e *edit) commit(entries ...acl.AuditEntry) *envelope.Refusal {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	changes := slices.Clone(e.more)
	for _, m := range e.order {
		body := wire.MustMarshal(e.changed[m])
		changes = append(changes, store.Change{IfRev: store.Any, Record: store.Record{NS: nsMembers, Key: m.record.ID, Body: body}})
	}
	for _, entry := range entries {
		changes = append(changes, e.s.gatewayCfg.Audit.Change(entry))
	}
	if err := e.s.gatewayCfg.Records.Apply(ctx, changes, time.Now()); err != nil {
		e.s.gatewayCfg.Logger.Error("participants not stored; the change is refused", "space", e.s.cfg.ID, "err", err)
		return envelope.RefuseStore()
	}
	for _, m := range e.order {
		m.record = e.changed[m]
		m.recompute(e.s.cfg.DropIn)
		e.s.accounts.Publish(m.record)
	}
	return nil
}

// load takes over the stored records of the participants.
func (s *Space) load() error {
	for _, rec := range s.accounts.List() {
		if rec.Space != s.cfg.ID {
			continue
		}
		if err := rec.compile(); err != nil {
			return fmt.Errorf("read participant %s: %w", rec.ID, err)
		}
		m := s.members.byName[rec.Name]
		switch {
		case m == nil && rec.Invited:
			m = s.members.add(rec.Name, nil)
		case m == nil:
			continue // no longer configured
		}
		m.record = rec
		m.recompute(s.cfg.DropIn)
	}
	return nil
}

// auditEntry returns the audit entry for an operation of actor on the participant target (MEW-31).
func (s *Space) auditEntry(actor *member, kind, target, result string) acl.AuditEntry {
	note := kind
	if target != "" {
		note += " " + envelope.ToPrintable(target, envelope.MaxName)
	}
	return acl.AuditEntry{At: time.Now(), Kind: "mew", Subject: "mew-space:" + s.cfg.ID + "/" + actor.name, By: acl.ByRule, Rule: "mew.space", Note: note + ": " + result}
}

// auditRefusal counts a refused operation in the audit log. Unlike an entry, a count is not committed together with
// other changes.
func (s *Space) auditRefusal(actor *member, kind, target, result string) {
	s.gatewayCfg.Audit.Count(s.auditEntry(actor, kind, target, result))
}
