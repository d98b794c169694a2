package mess

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

//go:embed page/*.html
var pageFiles embed.FS

// pages is the part of the owner's page about the exchange. It lists threads by state and shows forms for what the
// owner can do with a thread.
type pages struct {
	b               *Bridge
	x               *exchange.Exchange
	shell           *httpapi.Pages
	threads, thread *httpapi.PageTemplate
}

// MountPage adds the routes of the page, and the entry "MESS" if the exchange is served or there is a link.
func (b *Bridge) MountPage(shell *httpapi.Pages) {
	p := &pages{
		b: b, x: b.x, shell: shell,
		threads: shell.Template(pageFiles, nil, "page/threads.html"), thread: shell.Template(pageFiles, nil, "page/thread.html"),
	}
	shell.Follow(p.follow)
	inUse := func() bool { return b.Serving() || len(b.links.All()) > 0 } // most owners never use MESS
	shell.Add(httpapi.Nav{Path: "mess", Title: "MESS", Count: p.waiting, Shown: inUse})
	g := shell.Group()
	g.GET("/mess", p.list)
	g.GET("/mess/:ref", p.show)
	g.POST("/mess/:ref", p.act)
	g.GET("/mess/:ref/:file", p.image)
}

// topicThreads is the topic that makes open pages load their live regions again.
const topicThreads = "mess"

// follow calls changed after every change of a thread, until ctx ends.
func (p *pages) follow(ctx context.Context, changed func(topic string)) {
	next := p.x.NextChange()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next:
			next = p.x.NextChange()
			changed(topicThreads)
		}
	}
}

// waiting returns the number of unclaimed threads, for the navigation.
func (p *pages) waiting(context.Context) int {
	return min(p.x.Count(thread.Received), httpapi.MaxCount)
}

const pageSize = 30

type threadsView struct {
	State   thread.Code   // "" for all
	States  []thread.Code // the states that threads are in, and "" for all
	Threads []threadRow
	Next    string
}

type threadRow struct {
	exchange.Summary
	Open       bool
	From, With string // the names of requester and holder
}

func (p *pages) list(c echo.Context) error {
	view := threadsView{States: []thread.Code{""}}
	if code, ok := thread.ParseCode(c.QueryParam("state")); ok {
		view.State = code
	}
	for _, code := range thread.Codes() {
		if code == view.State || p.x.Count(code) > 0 {
			view.States = append(view.States, code)
		}
	}
	page, err := p.x.List(c.Request().Context(), exchange.Owner("page"), view.State, c.QueryParam("after"), pageSize)
	if err != nil {
		return err
	}
	view.Next = page.Next
	for _, s := range page.Threads {
		view.Threads = append(view.Threads, threadRow{s, s.Status.Open(), p.nameOf(c, s.Requester), p.nameOf(c, s.Holder)})
	}
	return p.shell.Render(c, p.threads, httpapi.View{Title: "MESS", Topics: []string{topicThreads}, Data: view})
}

func (p *pages) nameOf(c echo.Context, id string) string {
	if id == thread.OwnerID {
		return "you"
	}
	return p.shell.NameOf(c.Request().Context(), id)
}

type threadPage struct {
	Thread      *thread.Thread
	From, With  string // the names of requester and holder
	Messages    []messageRow
	CanClaim    bool
	CanComplete bool
	CanFail     bool
	CanCancel   bool
	MustConfirm bool
	Questions   []thread.Question
	Suggestion  *suggestionView
}

// doneTexts confirm what a form did (see [httpapi.Done]).
var doneTexts = map[string]string{"done": "Done. The others see it now.", "fetched": "It was fetched and is kept with the thread."}

func (p *pages) show(c echo.Context) error {
	ctx := c.Request().Context()
	t, err := p.x.Thread(ctx, exchange.Owner("page"), c.Param("ref"))
	if err != nil {
		return err
	}
	messages, err := p.x.MessagesOf(ctx, t)
	if err != nil {
		return err
	}
	view := threadPage{
		Thread: t, From: p.nameOf(c, t.Requester), With: p.nameOf(c, t.Holder), CanClaim: t.IsClaimable(), CanCancel: t.Status.Open() && t.Requester == thread.OwnerID,
		CanComplete: t.Holder == thread.OwnerID && slices.Contains(thread.HolderMay[t.Status], thread.Completed),
		CanFail:     t.Holder == thread.OwnerID && slices.Contains(thread.HolderMay[t.Status], thread.Failed),
		MustConfirm: t.Requester == thread.OwnerID && t.Status == thread.NeedsConfirmation,
	}
	if t.Requester == thread.OwnerID && t.Status == thread.NeedsInput {
		view.Questions = t.Questions
	}
	if strings.HasPrefix(t.Turn(), thread.TurnSuggestion+"/") {
		if view.Suggestion, err = p.suggestion(ctx, t); err != nil {
			return err
		}
		view.Suggestion.By = p.nameOf(c, view.Suggestion.By)
	}
	for _, m := range messages {
		row := viewMessage(t.Ref, m)
		row.From = p.nameOf(c, m.From)
		for _, r := range listReferences(m) {
			a, err := storedReference(ctx, p.x, t.Ref, r)
			if err != nil {
				return err
			}
			row.addReference(t.Ref, r, a)
		}
		view.Messages = append(view.Messages, row)
	}
	return p.shell.Render(c, p.thread, httpapi.View{Title: "Thread", Topics: []string{topicThreads}, Done: doneTexts[c.QueryParam("did")], Data: view})
}

// image serves a picture from the store. It takes the type from the bytes of the picture, not from the sender.
func (p *pages) image(c echo.Context) error {
	a, err := p.x.Attachment(c.Request().Context(), exchange.Owner("page"), c.Param("ref"), c.Param("file"))
	if err != nil {
		return err
	}
	_, mime := thread.Sniff(a.Data)
	if !safeImages[mime] || len(a.Data) > thread.MaxUpload {
		return thread.Missing("no such picture")
	}
	h := c.Response().Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	return c.Blob(http.StatusOK, mime, a.Data)
}

// formRoom is the size that the other fields of a form with a photo may have, in bytes.
const formRoom = 64 << 10

// act carries out the form that the owner submitted on the page of a thread.
func (p *pages) act(c echo.Context) error {
	if err := httpapi.KeepOpen(c, 5*time.Minute); err != nil { // uploading a photo from a phone may take long
		return err
	}
	r := c.Request()
	r.Body = http.MaxBytesReader(c.Response().Writer, r.Body, thread.MaxUpload+formRoom)
	err := r.ParseMultipartForm(1 << 20)
	if errors.Is(err, http.ErrNotMultipart) {
		err = r.ParseForm()
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return thread.TooLarge("the photo is larger than 10 MiB")
	}
	if err != nil {
		return thread.Bad("", "the form could not be read")
	}
	if r.MultipartForm != nil {
		defer r.MultipartForm.RemoveAll()
	}
	httpapi.UnixBreaks(r.Form)
	ctx := r.Context()
	t, err := p.x.Thread(ctx, exchange.Owner("page"), c.Param("ref"))
	if err != nil {
		return err
	}
	if c.FormValue("do") == "fetch" {
		if _, err := p.b.Fetch(ctx, t.Ref, c.FormValue("uri")); err != nil {
			return err
		}
		return httpapi.Done(c, "mess/"+url.PathEscape(t.Ref), "fetched")
	}
	entry, err := p.entry(c, t)
	if err != nil {
		return err
	}
	opts := exchange.Options{Re: t.Ref}
	switch c.FormValue("do") {
	case "answer", "confirm", "refuse": // these refer to the message that the page showed
		if opts.IfSerial, err = strconv.Atoi(c.FormValue("serial")); err != nil || opts.IfSerial < 1 {
			return thread.Bad("serial", "is missing: open the thread again")
		}
	case "accept", "turndown":
		if opts.IfTurn = c.FormValue("turn"); !strings.HasPrefix(opts.IfTurn, thread.TurnSuggestion+"/") {
			return thread.Bad("turn", "is missing: open the thread again")
		}
	}
	if _, err := p.x.Do(ctx, exchange.Owner("page"), thread.Block{entry}, opts); err != nil {
		return err
	}
	return httpapi.Done(c, "mess/"+url.PathEscape(t.Ref), "done")
}

// entry returns the MESS entry of a form.
func (p *pages) entry(c echo.Context, t *thread.Thread) (e thread.Entry, err error) {
	text := strings.TrimSpace(c.FormValue("text"))
	switch c.FormValue("do") {
	case "claim":
		return thread.NewStatus(t.Ref, thread.Claimed), nil
	case "decline":
		return thread.NewStatus(t.Ref, thread.Declined, wire.TextField("reason", cmp.Or(text, "the owner declined"))), nil
	case "fail", "giveback": // the holder must give a reason
		if text == "" {
			return e, thread.Bad("text", "say why: the requester reads it")
		}
		code := thread.Failed
		if c.FormValue("do") == "giveback" {
			code = thread.Declined
		}
		return thread.NewStatus(t.Ref, code, wire.TextField("reason", text)), nil
	case "ask":
		question := wire.Obj(wire.TextField("field", "answer"), wire.TextField("question", c.FormValue("text")))
		return thread.NewStatus(t.Ref, thread.NeedsInput, wire.Field("questions", wire.Arr(question))), nil
	case "complete":
		content, err := p.result(c, t)
		return thread.NewEntry("response", t.Ref, wire.Field("content", content)), err
	case "answer":
		answers := wire.Obj()
		for i, q := range t.Questions {
			answers = answers.With(q.ID, wire.Text(c.FormValue("q"+strconv.Itoa(i))))
		}
		return thread.NewEntry("reply", t.Ref, wire.Field("answers", answers)), nil
	case "confirm", "refuse":
		return thread.NewEntry("reply", t.Ref, wire.Field("confirm", wire.Bool(c.FormValue("do") == "confirm"))), nil
	case "accept", "turndown":
		e = thread.NewEntry("reply", t.Ref, wire.Field("accept", wire.Bool(c.FormValue("do") == "accept")))
		e.Body = e.Body.WithOptional("reason", text)
		return e, nil
	case "cancel":
		return thread.NewEntry("cancel", t.Ref), nil
	}
	return e, thread.Bad("do", "is not a known action")
}

// result returns the content that a form delivers: a text, and a photo that is stored first.
func (p *pages) result(c echo.Context, t *thread.Thread) (wire.Value, error) {
	var content []wire.Value
	if file, head, err := c.Request().FormFile("photo"); err == nil {
		defer file.Close()
		data, err := io.ReadAll(file)
		if err != nil {
			return wire.Value{}, thread.Bad("photo", "could not be read")
		}
		if len(data) > 0 {
			entry, err := p.x.Upload(c.Request().Context(), exchange.Owner("page"), t.Ref, head.Filename, data)
			if err != nil {
				return wire.Value{}, err
			}
			content = append(content, entry)
		}
	}
	if text := strings.TrimSpace(c.FormValue("text")); text != "" {
		content = append(content, wire.Text(text))
	}
	if len(content) == 0 && c.FormValue("bare") == "" {
		return wire.Value{}, thread.Bad("text", "write the result, add a photo, or tick that there is nothing else to say")
	}
	if len(content) == 0 {
		content = append(content, wire.Obj(wire.Field("confirmation", wire.Bool(true))))
	}
	return wire.Arr(content...), nil
}
