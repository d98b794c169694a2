package web

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// DecisionLinks make links. With a link, the owner decides one question in a browser that has not signed in, for
// example on a phone. A link is bound to the hash of the question, works once, and expires. Its buttons say what they
// do, see linkChoices. If the sender is a stranger, a rejection also covers the sender's later messages. The store keeps
// only the hash of the link's token.
type DecisionLinks struct {
	cfg   DecisionConfig
	key   []byte // tokens are derived from it, so that a notice that this process sends again has the same link
	wrong *rate.Penalties
	page  *httpapi.PageTemplate
	pages *httpapi.PublicPages
}

// DecisionConfig configures [MountDecisions].
type DecisionConfig struct {
	Node    Node
	Records store.Records
	URL     string       // where browsers reach the owner's listener, without a path
	Logger  *slog.Logger // gets a warning if a used link cannot be removed; nil discards it
}

const (
	nsLinks    = "decision-links" // namespace of the stored links; the key of a link is the id of its question
	linkLife   = 3 * 24 * time.Hour
	linkParam  = "once"
	linkDoor   = "link" // the name of links in the audit log and in decisions
	maxForm    = 16 << 10
	maxWrong   = 10 // wrong links per client address and minute
	wrongPause = 10 * time.Minute
	maxClients = 1 << 12 // addresses whose wrong links are counted
)

// decisionLink is the stored part of a link.
type decisionLink struct {
	Token [sha256.Size]byte `json:"token"` // hash of the token
	Hash  string            `json:"hash"`  // of the question when the link was made
}

// MountDecisions adds the page that decision links open to the owner's listener.
func MountDecisions(listener *httpapi.Owner, cfg DecisionConfig) *DecisionLinks {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Node = namedNode{owner.WithNames(cfg.Node), localNode{cfg.Node}}
	group, pages := listener.Links()
	l := &DecisionLinks{
		cfg: cfg, key: make([]byte, sha256.Size), pages: pages, wrong: rate.NewPenalties(maxWrong, wrongPause, maxClients),
		page: pages.Template(pageFiles, viewFuncs, "page/decision.html", "page/message.html"),
	}
	rand.Read(l.key) // never fails
	group.GET("/:id", l.show)
	group.POST("/:id", l.decide)
	return l
}

// Link makes a link for a question. Earlier links for the question stop working. Link returns "" if a link cannot
// decide the question. It implements [notify.Config.Link].
func (l *DecisionLinks) Link(ctx context.Context, id string, now time.Time) (string, error) {
	ask, err := l.cfg.Node.FindApproval(ctx, id) // another question if this one waits behind it
	if errors.Is(err, store.ErrNotFound) || err == nil && (ask.ID != id || ask.State != acl.AskPending || len(linkChoices(ask)) == 0) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, l.key)
	fmt.Fprintf(mac, "%s\n%s\n%d", ask.ID, ask.Hash, ask.Created.UnixNano())
	token := base32.StdEncoding.EncodeToString(mac.Sum(nil)[:20])
	body, err := json.Marshal(decisionLink{sha256.Sum256([]byte(token)), ask.Hash})
	if err != nil {
		return "", fmt.Errorf("encode link: %w", err)
	}
	change := store.Change{
		Record: store.Record{NS: nsLinks, Key: ask.ID, Body: body, Expires: conversations.Sooner(ask.Expires, now.Add(linkLife))},
		IfRev:  store.Any,
	}
	if err := l.cfg.Records.Apply(ctx, []store.Change{change}, now); err != nil {
		return "", fmt.Errorf("store link: %w", err)
	}
	return l.cfg.URL + httpapi.LinkPath + "/" + url.PathEscape(ask.ID) + "?" + linkParam + "=" + token, nil
}

// linkChoices returns the choices of a question that a link offers: approve, which may let a stranger in, approve once,
// and reject. A link offers no choice about a new key, the key of an unproven id, or a lasting permission.
func linkChoices(ask owner.Approval) (choices []acl.Choice) {
	if ask.Lasting || ask.Kind == owner.AskKeyChange || ask.Rule == owner.RuleUnproven {
		return nil
	}
	for _, choice := range ask.Choices {
		if choice == acl.Approve || choice == acl.ApproveOnce || choice == acl.Reject {
			choices = append(choices, choice)
		}
	}
	return choices
}

// decisionView is the data of the page. Ask is nil if there is nothing to decide.
type decisionView struct {
	Title, Done, Error string // Done is the result of a choice
	Ask                *askView
	Path, Token        string
}

// Errors of links. A link that is not valid shows nothing of a question.
var (
	errNoLink = &wire.Error{
		Code: wire.InvalidMessage, Status: http.StatusNotFound,
		Message: "This link was used, has expired, is incomplete, or was replaced by the link of a newer notice about the same question.",
	}
	errLinkGone    = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusGone, Message: "Your choice is not needed any more:"}
	errLinkChanged = &wire.Error{
		Code: wire.InvalidMessage, Status: http.StatusConflict,
		Message: "The question has changed since the notice was sent. Nothing was decided. Look at the question on your page.",
	}
)

// find returns the question of a link, without the messages that came after the link was made, and the link's hash of
// the question.
func (l *DecisionLinks) find(c echo.Context, token string) (ask owner.Approval, hash string, err error) {
	ctx, id, now, client := c.Request().Context(), c.Param("id"), time.Now(), httpapi.ForwardedClient(c.Request())
	if wait := l.wrong.Admit(client, now); wait > 0 {
		return ask, "", wire.ErrRateLimited.After(wait)
	}
	var link decisionLink // if no link is stored, its Token stays zero, which no token matches
	if _, _, err := store.ReadRecord(ctx, l.cfg.Records, nsLinks, id, &link, now); err != nil {
		return ask, "", fmt.Errorf("read link: %w", err)
	}
	if sum := sha256.Sum256([]byte(token)); subtle.ConstantTimeCompare(sum[:], link.Token[:]) != 1 {
		l.wrong.Fault(client, now)
		return ask, "", errNoLink
	}
	ask, err = l.cfg.Node.FindApproval(ctx, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return ask, "", errNoLink
	case err != nil:
		return ask, "", err
	case ask.ID != id: // the question now waits behind another one
		return ask, "", errLinkChanged
	case ask.State != acl.AskPending:
		return ask, link.Hash, acl.ErrAskGone
	}
	ask, ok := coveredBy(ask, link.Hash)
	if !ok {
		return ask, "", errLinkChanged
	}
	return ask, link.Hash, nil
}

// coveredBy returns the question without the messages that came after hash was computed. ok is false if hash is of
// another question.
func coveredBy(ask owner.Approval, hash string) (covered owner.Approval, ok bool) {
	var hashes []string
	for i, m := range ask.Messages {
		hashes = append(hashes, m.Hash)
		if acl.Chain(hashes...) == hash {
			ask.Messages = ask.Messages[:i+1]
			return ask, true
		}
	}
	return ask, len(ask.Messages) == 0 && ask.Hash == hash
}

// show shows the question. It changes nothing, because mail and chat programs open links by themselves.
func (l *DecisionLinks) show(c echo.Context) error {
	token := c.QueryParam(linkParam)
	ask, _, err := l.find(c, token)
	if err != nil {
		return l.refuse(c, ask, err)
	}
	return l.render(c, http.StatusOK, ask, token, "")
}

func (l *DecisionLinks) render(c echo.Context, status int, ask owner.Approval, token, errorText string) error {
	view := viewAsk(ask)
	view.Whole = true // this page shows content of any size
	allowed := linkChoices(ask)
	view.Buttons = slices.DeleteFunc(view.Buttons, func(b button) bool { return !slices.Contains(allowed, b.Choice) })
	return l.pages.Render(c, l.page, status, decisionView{
		Title: view.What, Error: errorText, Ask: &view, Path: httpapi.LinkPath + "/" + url.PathEscape(ask.ID), Token: token,
	})
}

// refuse shows why a link decides nothing, and returns the refusal as an error for the log.
func (l *DecisionLinks) refuse(c echo.Context, ask owner.Approval, err error) error {
	view, refusal := decisionView{Title: "Nothing to decide"}, httpapi.PublicError(err)
	switch status := refusal.Status; {
	case errors.Is(err, acl.ErrAskGone):
		refusal = errLinkGone
		view.Error = refusal.Message + " " + decidedText(ask.Ask) + "."
	case status == http.StatusTooManyRequests:
		view.Error = "Too many wrong links came from your address. Try again in a few minutes, or use your page."
	case status >= http.StatusInternalServerError:
		view.Title, view.Error = "This did not work", "Something went wrong on this node. Nothing was decided. Try again."
	default:
		view.Error = refusal.Message
	}
	httpapi.SetErrorHeaders(c.Response().Header(), refusal)
	return errors.Join(l.pages.Render(c, l.page, refusal.Status, view), refusal)
}

// decide carries out a choice about exactly what the link covers.
func (l *DecisionLinks) decide(c echo.Context) error {
	form, err := httpapi.Form(c, maxForm)
	if err != nil {
		return err
	}
	token := form.Get(linkParam)
	ask, hash, err := l.find(c, token)
	if err != nil {
		return l.refuse(c, ask, err)
	}
	ctx, choice := c.Request().Context(), acl.Choice(form.Get("choice"))
	if !slices.Contains(linkChoices(ask), choice) {
		return l.render(c, http.StatusBadRequest, ask, token, "This link does not allow that answer. Nothing was decided.")
	}
	decided, err := l.cfg.Node.Decide(ctx, ask.ID, owner.Decision{Choice: choice, Hash: hash, Text: form.Get("text"), By: linkDoor}, 0)
	if errors.Is(err, acl.ErrAskGone) {
		return l.refuse(c, owner.Approval{Ask: decided.Ask}, err)
	}
	if errors.Is(err, acl.ErrHashMismatch) {
		return l.refuse(c, ask, errLinkChanged)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status < http.StatusInternalServerError {
		return l.render(c, http.StatusConflict, ask, token, "Nothing was decided: "+refusal.Message+".")
	}
	if err != nil {
		return l.refuse(c, ask, err)
	}
	used := store.Change{Record: store.Record{NS: nsLinks, Key: ask.ID}, IfRev: store.Any, Delete: true}
	if err := l.cfg.Records.Apply(context.WithoutCancel(ctx), []store.Change{used}, time.Now()); err != nil {
		l.cfg.Logger.Warn("cannot remove a used link", "ask", ask.ID, "err", err) // the question is decided, so the link is of no use
	}
	return l.pages.Render(c, l.page, http.StatusOK, decisionView{Title: "Done", Done: capitalize(owner.Outcome(decided.Ask)) + ". This link is used up."})
}
