package moltspeak

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/registry"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	keepListedKeys = 10 * time.Minute // how long the result of a look-up is cached
	maxListedKeys  = 1000
	cardTimeout    = 5 * time.Second
)

// listedKeys looks up the keys that registries and directories list for a name. They matter until the first message
// under that name pins a key.
type listedKeys struct {
	registrar   *registry.Registrar
	directories []Directory
	quota       quota.Lookups
	log         *slog.Logger

	mu    sync.Mutex
	cache map[string]listedKey // by agent@org
}

// listedKey is the key that others list for a name that is not pinned yet (MS-23).
type listedKey struct {
	key   string // "": no key is listed
	by    string // the registry that lists the key, or "card"
	until time.Time
}

// lookup asks the configured registries and, if they list no key, the directories for the key of a name. If registries
// disagree, it refuses the sender. It caches only complete results: if a registry does not answer, only this message is
// treated as if the registry did not list the name.
func (l *listedKeys) lookup(c *request) (listedKey, *message.Error) {
	ctx, name, now := context.WithoutCancel(c.ctx), c.m.From, c.now
	l.mu.Lock()
	listed, ok := l.cache[name.Name()]
	l.mu.Unlock()
	if ok && now.Before(listed.until) {
		return listed, nil
	}
	registries := l.registrar.Registries()
	// A card is found by the id of its agent, so only a MoltSpeak name that is such an id can have one.
	askCards := len(l.directories) > 0 && wire.AgentID(name.Agent).Valid()
	if len(registries) == 0 && !askCards {
		return listedKey{}, nil
	}
	if wait, ok := l.quota.PoolFor(c.signed, c.isKnown()).Take(c.sources, name.Name(), now); !ok {
		e := message.Fail(message.CodeRateLimit)
		e.Delay = wait
		return listedKey{}, e
	}
	listed = listedKey{until: now.Add(keepListedKeys)}
	complete := true
	for _, r := range registries {
		key, err := r.Key(ctx, name.Name())
		switch {
		case err != nil:
			complete = false
			l.log.WarnContext(ctx, "moltspeak: cannot get a key from a registry", "registry", r.Base, "peer", name.Name(), "err", err)
		case key != "" && listed.key != "" && listed.key != key:
			l.log.WarnContext(ctx, "moltspeak: registries disagree about a key", "registries", []string{listed.by, r.Base}, "peer", name.Name())
			return listedKey{}, message.Fail(message.CodeAuthFailed)
		case key != "" && listed.key == "":
			listed.key, listed.by = key, r.Base
		}
	}
	if listed.key == "" && askCards {
		var err error
		listed.key, err = l.cardKey(ctx, name)
		listed.by = "card"
		complete = complete && err == nil
	}
	if !complete {
		return listed, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.cache) >= maxListedKeys {
		clear(l.cache)
	}
	l.cache[name.Name()] = listed
	return listed, nil
}

// cardKey returns the MoltSpeak key on the card of the agent whose id is name.Agent. The agent must have proved to
// the directory that it holds the key of the card. Cards of other agents do not count, because anybody can write any
// name on a card. cardKey asks all directories at once and uses the first key in their configured order. The error
// joins those of the directories that gave no answer, even if another one has the key.
func (l *listedKeys) cardKey(ctx context.Context, name message.Agent) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cardTimeout)
	defer cancel()
	keys, errs := make([]string, len(l.directories)), make([]error, len(l.directories))
	var calls sync.WaitGroup
	for i, directory := range l.directories {
		calls.Go(func() { keys[i], errs[i] = keyOnCard(ctx, directory, name) })
	}
	calls.Wait()
	return cmp.Or(keys...), errors.Join(errs...)
}

// keyOnCard returns the MoltSpeak key on a proven card that names the agent, or "" if the directory has none.
func keyOnCard(ctx context.Context, directory Directory, name message.Agent) (string, error) {
	record, err := directory.Record(ctx, wire.AgentID(name.Agent))
	if errors.Is(err, client.ErrUnknownAgent) {
		return "", nil
	}
	if err != nil || record.Verification.Key == nil || record.Card.GetStr("agent_id") != name.Agent || !hasOwnKey(record.Card) {
		return "", err
	}
	meta, _ := record.Card.Get("metadata")
	if meta.GetStr("moltspeak_agent") != name.Name() {
		return "", nil
	}
	return meta.GetStr("moltspeak_key"), nil
}

// hasOwnKey reports whether the id of a card belongs to its key: a derived id must match the key. For other ids it
// returns true, because the directory decides who owns them.
func hasOwnKey(tree wire.Value) bool {
	if !wire.AgentID(tree.GetStr("agent_id")).HasDerivedShape() {
		return true
	}
	card, err := wire.ParseCard(tree, wire.CardRules{AllowHTTP: func(string) bool { return true }})
	if err != nil {
		return false
	}
	key, err := signing.ParsePublicKey(card.PublicKey)
	return err == nil && signing.ProvesID(card, key, time.Now()) == nil
}
