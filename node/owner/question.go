package owner

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// AskQuestion is the kind of a question that the owner's agent asks.
const AskQuestion = "question"

const (
	MaxQuestion      = 2000 // bytes of a question
	MaxAnswer        = 1000 // bytes of the owner's answer
	maxOpenQuestions = 20
	questionsPerHour = 30
)

// NewQuestion is a question of the agent to its owner.
type NewQuestion struct {
	Text         string `json:"text"`
	Conversation string `json:"conversation,omitempty"` // that the question is about: an id or a unique prefix
	Peer         string `json:"peer,omitempty"`         // needed if two peers use the same conversation id
	WaitSeconds  int    `json:"wait_seconds"`
}

// Question is the state of something that the agent submitted to the owner: a question, an outgoing message, or an
// answer to a task.
type Question struct {
	ID      string       `json:"id"`
	Kind    string       `json:"kind"`
	State   acl.AskState `json:"state"`
	Answer  string       `json:"answer,omitempty"` // what the owner wrote with the decision
	Created time.Time    `json:"created"`
	Expires time.Time    `json:"expires"`
	Decided time.Time    `json:"decided,omitzero"`
}

// The operations of questions.
var (
	AskOwner     = Endpoint[NewQuestion, Question]{http.MethodPost, "/questions", Send}
	ShowQuestion = Endpoint[None, Question]{http.MethodGet, "/questions/:id", Read}
)

// ErrManyQuestions means that too many questions of the agent wait, or that the agent asks too often.
var ErrManyQuestions = &wire.Error{
	Code: wire.RateLimited, Status: http.StatusTooManyRequests, Retry: true,
	Message: "the owner already has many questions of yours; wait for answers before you ask again",
}

// Questions stores the questions of the agent to its owner, and serves their operations.
type Questions struct {
	Asks    *acl.Asks
	Records store.Records
	Notices *notify.Box
	HoldFor time.Duration // how long a question waits
	// Find returns the key of a conversation; peer may be empty.
	Find func(ctx context.Context, id, peer string) (store.ConvKey, error)
}

// Resolve stores the owner's decision, and does nothing else.
func (q Questions) Resolve(ctx context.Context, _ acl.Ask, d acl.Decision) error {
	return q.Records.Apply(ctx, d.Changes, d.Now)
}

// Operations returns the operations of questions. One rate limit applies to all calls of AskOwner.
func (q Questions) Operations() []Operation {
	limit := rate.NewLimiter(rate.Every(time.Hour/questionsPerHour), questionsPerHour)
	return []Operation{
		AskOwner.Serve(func(c echo.Context, in NewQuestion) (Question, error) {
			wait, err := parseWait(c, in.WaitSeconds)
			if err != nil {
				return Question{}, err
			}
			id, err := q.open(c.Request().Context(), in, limit, time.Now())
			if err != nil {
				return Question{}, err
			}
			return q.await(c.Request().Context(), id, wait)
		}),
		ShowQuestion.Serve(func(c echo.Context, _ None) (Question, error) {
			query, err := ReadQuery[string](c)
			if err == nil {
				_, err = parseWait(c, int(query.Wait/time.Second))
			}
			if err != nil {
				return Question{}, err
			}
			return q.await(c.Request().Context(), c.Param("id"), query.Wait)
		}),
	}
}

// open stores a question and a notice about it, and returns the id of the question.
func (q Questions) open(ctx context.Context, in NewQuestion, limit *rate.Limiter, now time.Time) (string, error) {
	text := strings.TrimSpace(in.Text)
	if text == "" || len(text) > MaxQuestion {
		return "", Fault(http.StatusBadRequest, "text must have 1 to 2000 bytes", "ask about one thing")
	}
	var conv store.ConvKey
	if in.Conversation != "" {
		var err error
		if conv, err = q.Find(ctx, in.Conversation, in.Peer); err != nil {
			return "", err
		}
	}
	if !limit.AllowN(now, 1) {
		return "", ErrManyQuestions
	}
	body := wire.Obj(wire.Field("payload", wire.Obj(wire.TextField("question", text)))).JSON()
	id := acl.NewAskID(now)
	_, changes := q.Asks.Open(acl.Ask{
		ID: id, Kind: AskQuestion, Subject: "agent", Conv: conv, Title: "your agent asks you", Rule: "agent", Body: body, Hash: acl.HashBody(body),
		Size: len(body), Created: now, Expires: now.Add(q.HoldFor),
	}, acl.Slot{Key: "question/" + id, Term: "question", Max: maxOpenQuestions})
	notice := q.Notices.Change(notify.Notice{Kind: AskQuestion, Title: "your agent asks you", Text: "agent", At: now, Conv: conv, Ask: id})
	err := q.Records.Apply(ctx, append(changes, notice), now)
	if errors.Is(err, store.ErrQuota) {
		return "", ErrManyQuestions
	}
	return id, err
}

// pollQuestion is the interval at which a waiting request checks whether the owner has answered.
const pollQuestion = 300 * time.Millisecond

// await returns the question with this id. It waits for the owner's answer, but no longer than wait.
func (q Questions) await(ctx context.Context, id string, wait time.Duration) (Question, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for {
		ask, err := q.Asks.Get(context.WithoutCancel(ctx), id, time.Now())
		if err != nil {
			return Question{}, err
		}
		if ask.Kind != AskQuestion && ask.Kind != AskOutgoing && ask.Kind != AskTask {
			return Question{}, store.ErrNotFound // other questions show what others wrote, which is not for the agent
		}
		if ask.State != acl.AskPending || ctx.Err() != nil {
			return Question{ask.ID, ask.Kind, ask.State, ask.Answer, ask.Created, ask.Expires, ask.Decided}, nil
		}
		waiting.Pause(ctx, pollQuestion)
	}
}

// CheckAnswer checks the text that the owner adds to a decision about a question of this kind.
func CheckAnswer(kind, text string) error {
	switch {
	case text != "" && kind != AskQuestion:
		return Fault(http.StatusBadRequest, "only a question of your agent takes a text", "leave the text out")
	case len(text) > MaxAnswer:
		return Fault(http.StatusBadRequest, "the text must have at most 1000 bytes", "")
	}
	return nil
}

var _ acl.Resolver = Questions{}
