package moltspeak

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	wordFor  = 10 * time.Minute // how long a word about a key is remembered
	maxWords = 1000
	cardTime = 5 * time.Second
)

// word is what others say about the key of a name that is not pinned yet (MS-23).
type word struct {
	key   string // "": nobody says anything
	by    string // who says it
	until time.Time
}

// vouch asks the configured registries, and then the directories, for the key of a name. Registries that disagree are no
// word to go by: the sender is refused until the owner settles it. One that does not answer says nothing.
func (b *Bridge) vouch(c *exchange) (word, *Error) {
	ctx, name, now := c.ctx, c.m.From, c.now
	b.mu.Lock()
	w, ok := b.words[name.Name()]
	b.mu.Unlock()
	if ok && now.Before(w.until) {
		return w, nil
	}
	registries := b.remotes()
	card := len(b.cfg.Directories) > 0 && wire.AgentID(name.Agent).Valid()
	if len(registries) == 0 && !card {
		return word{}, nil
	}
	if wait, ok := b.lookups.Of(c.signed, c.known()).Take(c.sources, name.Name(), now); !ok {
		e := fault(CodeRateLimit)
		e.Delay = wait
		return word{}, e
	}
	w = word{until: now.Add(wordFor)}
	for _, r := range registries {
		key, err := r.key(ctx, name.Name())
		switch {
		case err != nil:
			b.cfg.Logger.WarnContext(ctx, "moltspeak: ask a registry for a key", "registry", r.base, "peer", name.Name(), "err", err)
		case key != "" && w.key != "" && w.key != key:
			b.cfg.Logger.WarnContext(ctx, "moltspeak: registries disagree about a key", "registries", []string{w.by, r.base}, "peer", name.Name())
			return word{}, fault(CodeAuthFailed)
		case key != "" && w.key == "":
			w.key, w.by = key, r.base
		}
	}
	if w.key == "" && card {
		w.key = b.cardKey(ctx, name)
		w.by = "card"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.words) >= maxWords {
		clear(b.words)
	}
	b.words[name.Name()] = w
	return w, nil
}

// cardKey returns the MoltSpeak key on the card of the agent whose id the name is, if that agent proved to a directory
// that it has the key of the card. Another agent's card says nothing: anybody may write any name on his own. All
// directories are asked at once, and the first in their order that has such a card wins.
func (b *Bridge) cardKey(ctx context.Context, name Agent) string {
	ctx, cancel := context.WithTimeout(ctx, cardTime)
	defer cancel()
	keys := make([]string, len(b.cfg.Directories))
	var asked sync.WaitGroup
	for i, directory := range b.cfg.Directories {
		asked.Go(func() { keys[i] = listedKey(ctx, directory, name) })
	}
	asked.Wait()
	return cmp.Or(keys...)
}

// listedKey returns the MoltSpeak key on a proven card that names the agent, "" if the directory has none.
func listedKey(ctx context.Context, directory Directory, name Agent) string {
	record, err := directory.Record(ctx, wire.AgentID(name.Agent))
	if err != nil || record.Verification.Key == nil || record.Card.GetStr("agent_id") != name.Agent || !hasOwnKey(record.Card) {
		return ""
	}
	meta, _ := record.Card.Get("metadata")
	if meta.GetStr("moltspeak_agent") != name.Name() {
		return ""
	}
	return meta.GetStr("moltspeak_key")
}

// hasOwnKey reports whether nobody else can have taken the id of a card: an id that is made of a key leads to the key of
// the card. The directory decides to whom any other id belongs.
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
