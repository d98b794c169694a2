package web

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

type conversationsView struct {
	State  conversations.State
	States []conversations.State
	Query  string // the words that were searched; "" for a list
	Items  []talkView
	Next   uint64
}

// talkView is a conversation in a list: with whom it is, and its last words.
type talkView struct {
	owner.Conversation
	Path  string // below the page
	At    time.Time
	Words string
	More  int // earlier conversations with the same peer on this page of the list
}

var convStates = []conversations.State{"", conversations.Open, conversations.Completed, conversations.Failed, conversations.Expired}

// showConversations lists conversations by person, each with its last words, or finds those with some words.
func (p *pages) showConversations(c echo.Context) error {
	ctx := c.Request().Context()
	q, err := owner.ReadQuery(c, conversations.Open, conversations.Completed, conversations.Failed, conversations.Expired)
	if err != nil {
		return err
	}
	view := conversationsView{State: conversations.State(q.State), States: convStates, Query: wire.OneLine(c.QueryParam("q"), maxQuery)}
	if view.Query != "" {
		view.Items, view.Next, err = p.says.search(ctx, strings.Fields(strings.ToLower(view.Query)), q.Before)
	} else {
		var list owner.ConversationList
		if list, err = p.n.ListConversations(ctx, owner.Query{State: q.State, Before: q.Before, Limit: pageSize}); err == nil {
			view.Items, err = p.says.viewTalks(ctx, list.Items)
			view.Items, view.Next = byPerson(view.Items), list.Next
		}
	}
	if err != nil {
		return err
	}
	return p.shell.Render(c, p.conversations, httpapi.View{
		Title: "Conversations", Topics: []string{string(owner.TopicConversations)}, Done: p.doneMessage(c), Data: view,
	})
}

// reader reads what conversations say.
type reader struct{ Node }

func (r reader) viewTalks(ctx context.Context, list []owner.Conversation) (views []talkView, err error) {
	for _, conv := range list {
		v := talkView{Conversation: conv, Path: convPath(conv.Peer, conv.ID), At: conv.Last}
		if v.Words, err = r.lastWords(ctx, conv); err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

// byPerson keeps the first conversation of each peer, with the number of the others.
func byPerson(list []talkView) (views []talkView) {
	for _, v := range list {
		if i := slices.IndexFunc(views, func(earlier talkView) bool { return earlier.Peer == v.Peer }); i >= 0 {
			views[i].More++
			continue
		}
		views = append(views, v)
	}
	return views
}

// lastWords returns what was said or agreed last in a conversation.
func (r reader) lastWords(ctx context.Context, conv owner.Conversation) (string, error) {
	const most = 8 // reports may follow the last words
	t, err := r.ReadTranscript(ctx, conv.ID, conv.Peer, conv.Entries-min(conv.Entries, most))
	if err != nil {
		return "", err
	}
	messages, _ := viewMessages(t)
	for _, m := range slices.Backward(messages) {
		if i := slices.IndexFunc(conv.Agreements, func(a owner.Agreement) bool { return string(a.Message) == m.ID }); i >= 0 {
			return whatWasAgreed(conv.Agreements[i]), nil
		}
		if !m.Content.IsReport() {
			return m.words(), nil
		}
	}
	return "", nil
}

// latest selects a page of the newest entries in a state; before is the Next of the page before.
func latest[S ~string](state S, before string) owner.Query {
	return owner.Query{State: string(state), After: before, Limit: pageSize, Newest: true}
}

// Name returns the title of an agreement, or its terms: an offer has no title.
func (a agreed) Name() string { return cmp.Or(a.Title, a.Agreement.Agreement.String()) }

// whatWasAgreed is an agreement in one line.
func whatWasAgreed(a owner.Agreement) string {
	text := map[owner.Standing]string{owner.StandingAgreed: "Agreed: ", owner.StandingCancelled: "Cancelled: "}[a.Standing] + agreed{Agreement: a}.Name()
	if a.Time != "" {
		text += ", " + owner.LocalTime(a.Time)
	}
	return text
}

// words returns what the message says in one line.
func (m messageView) words() string {
	text := m.Content.Preview()
	if m.Intent != wire.Deliver {
		text = m.Content.Sentence(m.Intent)
	}
	if m.Out {
		return "You: " + text
	}
	return text
}

const (
	searchFor = 2 * time.Second // afterwards, the owner continues the search by hand
)

// search returns conversations, newest first, with a peer whose name has all the words, or with a message that has them.
// It reads the transcripts themselves, so nothing that was deleted can be found. next continues it; 0 at the end.
func (r reader) search(ctx context.Context, words []string, before uint64) (found []talkView, next uint64, err error) {
	for until := time.Now().Add(searchFor); ; before = next {
		list, err := r.ListConversations(ctx, owner.Query{Before: before, Limit: pageSize})
		if err != nil {
			return nil, 0, err
		}
		next = list.Next
		for _, conv := range list.Items {
			v := talkView{Conversation: conv, Path: convPath(conv.Peer, conv.ID), At: conv.Last}
			if hasAll(v.Shown().Text, words) {
				v.Words, err = r.lastWords(ctx, conv)
			} else {
				err = r.findWords(ctx, &v, words)
			}
			if err != nil {
				return nil, 0, err
			}
			if v.Words != "" {
				found = append(found, v)
			}
		}
		if next == 0 || len(found) >= pageSize || time.Now().After(until) {
			return found, next, nil
		}
	}
}

// findWords sets the words, the time and the path of the newest message that has all the words. It sets nothing if there
// is none.
func (r reader) findWords(ctx context.Context, v *talkView, words []string) error {
	const shown = 5 // messages before the one that was found
	for after := uint64(0); ; {
		t, err := r.ReadTranscript(ctx, v.ID, v.Peer, after)
		if err != nil {
			return err
		}
		for _, e := range t.Transcript {
			m := messageView{N: e.N, Out: e.Direction == "out"}
			m.Content.Said, m.Intent = owner.SayMessage(e, t.Intent)
			if m.Content.IsReport() || !hasAll(m.Content.Words(), words) {
				continue
			}
			v.Words, v.At, v.Path = m.words(), e.At, convPath(v.Peer, v.ID)
			if v.Entries > maxMessages {
				v.Path += "?after=" + strconv.FormatUint(e.N-min(e.N, shown), 10)
			}
			v.Path += "#e" + strconv.FormatUint(e.N, 10)
		}
		if after = t.Next; after == 0 {
			return nil
		}
	}
}

// hasAll reports whether text has all the words, which are in lower case.
func hasAll(text string, words []string) bool {
	text = strings.ToLower(text)
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}
