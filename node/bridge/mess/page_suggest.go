package mess

import (
	"context"
	"errors"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
	"github.com/agentmesh/agentmesh/store"
)

// suggestionView is what the page shows of a suggestion that waits for the owner.
type suggestionView struct {
	By, What string
	Quotes   []string // the executor's words
	Reason   string
	Turn     string
}

// suggestionWords say, behind a name, what each type of suggestion is and what a yes does.
var suggestionWords = map[string]string{
	"merge":       "suggests to make one request of several. If you accept, one request takes the place of these:",
	"split":       "suggests to make several requests of this one. If you accept, these take its place:",
	"delegate":    "suggests that somebody else does it. If you accept, it is asked of that executor alone:",
	"defer":       "suggests to put it off. If you accept, it waits until then:",
	"alternative": "suggests something else. If you accept, the executor is told so and the request stays as it is:",
}

// suggestion shows all of the newest suggestion: what is decided about is not shortened.
func (p *pages) suggestion(ctx context.Context, t *thread.Thread) (*suggestionView, error) {
	s := t.Suggestions[t.OpenSuggestion()-1]
	view := &suggestionView{By: s.By, What: suggestionWords[s.Type], Reason: s.Reason, Turn: t.Turn()}
	if s.Type == "merge" {
		for _, ref := range s.Re {
			other, err := p.x.Thread(ctx, exchange.Owner("page"), ref)
			if e, refused := errors.AsType[*wire.Error](err); refused && e.Status == 404 || errors.Is(err, store.ErrNotFound) {
				continue // a yes says so
			}
			if err != nil {
				return nil, err
			}
			view.Quotes = append(view.Quotes, other.Ref+": "+other.Intent)
		}
	}
	if s.Proposed.Kind() == wire.Array {
		for e := range s.Proposed.Elems() {
			view.Quotes = append(view.Quotes, written(e))
		}
	} else if !s.Proposed.IsNull() {
		view.Quotes = append(view.Quotes, written(s.Proposed))
	}
	return view, nil
}

// written is a value as text: itself, or as YAML writes it.
func written(v wire.Value) string {
	if s, ok := v.Str(); ok {
		return s
	}
	return strings.TrimSpace(string(yamltree.Append(nil, v)))
}
