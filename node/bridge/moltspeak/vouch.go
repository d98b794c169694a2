package moltspeak

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/quota"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const (
	wordFor  = 10 * time.Minute // how long a word about a key is remembered
	maxWords = 1000
	cardTime = 5 * time.Second
)

// listedKeys are the keys that registries and directories list, which are looked up before the first message of a name
// pins its key.
type listedKeys struct {
	registrar   *registrar
	directories []Directory
	quota       quota.Lookups
	log         *slog.Logger

	mu    sync.Mutex
	words map[string]word // by agent@org
}

// word is what others say about the key of a name that is not pinned yet (MS-23).
type word struct {
	key   string // "": nobody says anything
	by    string // who says it
	until time.Time
}

// lookup asks the configured registries, and then the directories, for the key of a name. Registries that disagree are no
// word to go by: the sender is refused until the owner settles it. One that does not answer says nothing.
func (l *listedKeys) lookup(c *exchange) (word, *message.Error) {
	ctx, name, now := c.ctx, c.m.From, c.now
	l.mu.Lock()
	w, ok := l.words[name.Name()]
	l.mu.Unlock()
	if ok && now.Before(w.until) {
		return w, nil
	}
	registries := l.registrar.remotes()
	card := len(l.directories) > 0 && wire.AgentID(name.Agent).Valid()
	if len(registries) == 0 && !card {
		return word{}, nil
	}
	if wait, ok := l.quota.Of(c.signed, c.known()).Take(c.sources, name.Name(), now); !ok {
		e := message.Fail(message.CodeRateLimit)
		e.Delay = wait
		return word{}, e
	}
	w = word{until: now.Add(wordFor)}
	for _, r := range registries {
		key, err := r.key(ctx, name.Name())
		switch {
		case err != nil:
			l.log.WarnContext(ctx, "moltspeak: ask a registry for a key", "registry", r.base, "peer", name.Name(), "err", err)
		case key != "" && w.key != "" && w.key != key:
			l.log.WarnContext(ctx, "moltspeak: registries disagree about a key", "registries", []string{w.by, r.base}, "peer", name.Name())
			return word{}, message.Fail(message.CodeAuthFailed)
		case key != "" && w.key == "":
			w.key, w.by = key, r.base
		}
	}
	if w.key == "" && card {
		w.key = l.cardKey(ctx, name)
		w.by = "card"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.words) >= maxWords {
		clear(l.words)
	}
	l.words[name.Name()] = w
	return w, nil
}

// cardKey returns the MoltSpeak key on the card of the agent whose id the name is, if that agent proved to a directory
// that it has the key of the card. Another agent's card says nothing: anybody may write any name on his own. All
// directories are asked at once, and the first in their order that has such a card wins.
func (l *listedKeys) cardKey(ctx context.Context, name message.Agent) string {
	ctx, cancel := context.WithTimeout(ctx, cardTime)
	defer cancel()
	keys := make([]string, len(l.directories))
	var asked sync.WaitGroup
	for i, directory := range l.directories {
		asked.Go(func() { keys[i] = keyOnCard(ctx, directory, name) })
	}
	asked.Wait()
	return cmp.Or(keys...)
}

// keyOnCard returns the MoltSpeak key on a proven card that names the agent, "" if the directory has none.
func keyOnCard(ctx context.Context, directory Directory, name message.Agent) string {
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
