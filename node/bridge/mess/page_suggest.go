package mess

import (
	"context"
	"net/http"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

type suggestionView struct {
	By, What string
	Quotes   []string // the executor's proposals; for a merge, also the requests to replace
	Reason   string
	Turn     string // see [thread.Thread.Turn]
}

// suggestionTexts say, after the executor's name, what each type of suggestion is and what accepting it does.
var suggestionTexts = map[string]string{
	"merge":       "suggests combining several requests into one. If you accept, one request replaces these:",
	"split":       "suggests splitting this request. If you accept, these requests replace it:",
	"delegate":    "suggests that somebody else do it. If you accept, only that executor is asked:",
	"defer":       "suggests doing it later. If you accept, the request waits until:",
	"alternative": "suggests something else. If you accept, the executor learns of it, and the request stays as it is:",
}

// suggestion returns the newest undecided suggestion in full, because the owner decides about it.
func (p *pages) suggestion(ctx context.Context, t *thread.Thread) (*suggestionView, error) {
	s := t.FindSuggestion("")
	view := &suggestionView{By: s.By, What: suggestionTexts[s.Type], Reason: s.Reason, Turn: t.Turn()}
	if s.Type == "merge" {
		for _, ref := range s.Re {
			other, err := p.x.Thread(ctx, exchange.Owner("page"), ref)
			if exchange.IsStatus(err, http.StatusNotFound) {
				continue // accepting the suggestion reports the error
			}
			if err != nil {
				return nil, err
			}
			view.Quotes = append(view.Quotes, other.Ref+": "+other.Intent)
		}
	}
	if s.Proposed.Kind() == wire.Array {
		for e := range s.Proposed.Elems() {
			view.Quotes = append(view.Quotes, valueText(e))
		}
	} else if !s.Proposed.IsNull() {
		view.Quotes = append(view.Quotes, valueText(s.Proposed))
	}
	return view, nil
}

func valueText(v wire.Value) string {
	if s, ok := v.Str(); ok {
		return s
	}
	return strings.TrimSpace(string(yamltree.Append(nil, v)))
}
