package rest

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// MaxPage bounds the threads on one page of a list.
const MaxPage = 1000

// list handles GET /requests (MESS-52).
func (r *call) list() error {
	q := r.c.QueryParams()
	code := thread.Code("")
	if s := q.Get("status"); s != "" {
		var ok bool
		if code, ok = thread.ParseCode(s); !ok {
			return thread.Bad("status", "is not a status")
		}
	}
	limit := MaxPage
	if s := q.Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return thread.Bad("limit", "must be a number from 1 to 1000")
		}
		limit = min(n, MaxPage)
	}
	page, err := r.Exchange.List(r.c.Request().Context(), r.who, code, q.Get("after"), limit)
	if err != nil {
		return err
	}
	list := make([]wire.Value, len(page.Threads))
	for i, s := range page.Threads {
		if list[i], err = r.addNames(summaryTree(s), s.Requester, s.Holder); err != nil {
			return err
		}
	}
	return r.respond(http.StatusOK, wire.Obj(wire.Field("threads", wire.Arr(list...))).WithOptional("next", page.Next))
}

// addNames adds the names of agents to an answer to the owner.
func (r *call) addNames(v wire.Value, ids ...string) (wire.Value, error) {
	if !r.who.Owner || r.Names == nil {
		return v, nil
	}
	return owner.AddNames(r.c.Request().Context(), r.Names, v, ids...)
}

func summaryTree(s exchange.Summary) wire.Value {
	return wire.Obj(
		wire.TextField("ref", s.Ref),
		wire.TextField("status", s.Status.RESTName()),
		wire.TextField("intent", s.Intent),
		wire.TextField("requestor_id", s.Requester),
		wire.Field("executor_id", thread.TextOrNull(s.Holder)),
		wire.TextField("priority", s.Priority),
		wire.Field("created_at", thread.TimeText(s.Created)),
		wire.Field("updated_at", thread.TimeText(s.Updated)),
	)
}

// create handles POST /requests with one request in JSON. Members that are null, that a request does not have, or that
// the exchange sets itself, are ignored (MESS-54).
func (r *call) create() error {
	v, err := r.readObject()
	if err != nil {
		return err
	}
	if hints, ok := v.Get("response_hints"); ok && !thread.HasValue(v, "response_hint") {
		v = v.With("response_hint", hints)
	}
	for _, m := range v.Members() {
		if m.Value.IsNull() || !slices.Contains(requestMembers, m.Key) {
			v = v.Without(m.Key)
		}
	}
	if text, ok := v.Get("context"); ok && text.Kind() == wire.String {
		v = v.With("context", wire.Arr(text))
	}
	if err := (thread.Entry{Type: "request", Body: v}).Check("", time.Now(), thread.Strict); err != nil {
		return err
	}
	replay, err := r.readReplayKey(v)
	if err != nil {
		return err
	}
	ctx := r.c.Request().Context()
	res, err := r.Exchange.Do(ctx, r.who, thread.Block{{Type: "request", Body: v}}, exchange.Options{Replay: replay})
	if err != nil {
		return err
	}
	if res.Ref == "" { // a repeated request (MESS-16)
		ref, _ := res.RequestRef()
		t, err := r.Exchange.Thread(ctx, r.who, ref)
		if err != nil {
			return err
		}
		res.Ref, res.Status = ref, t.Status
	}
	return r.respondState(http.StatusCreated, res)
}

func (r *call) respondState(status int, res exchange.Result) error {
	return r.respond(status, wire.Obj(
		wire.TextField("ref", res.Ref), wire.TextField("status", res.Status.RESTName())))
}

// requestMembers are the members of a request (MESS-12 to MESS-15).
var requestMembers = []string{
	"intent", "id", "precision", "requires", "context", "constraints", "response_hint", "priority", "compensation", "needed_by", "confirm_before",
}

// show handles GET /requests/{ref}.
func (r *call) show() error {
	ctx := r.c.Request().Context()
	t, err := r.Exchange.Thread(ctx, r.who, r.ref())
	if err != nil {
		return err
	}
	messages, err := r.Exchange.MessagesOf(ctx, t)
	if err != nil {
		return err
	}
	parties := []string{t.Requester, t.Holder}
	for _, m := range messages {
		parties = append(parties, m.From)
	}
	view, err := r.addNames(ThreadView(t, messages), parties...)
	if err != nil {
		return err
	}
	if r.who.Owner {
		view = view.With("serial", wire.Int(int64(t.Serial)))
	}
	r.c.Response().Header().Set("ETag", etag(t))
	return r.respond(http.StatusOK, wire.Obj(wire.Field("thread", view)))
}

// etag returns the entity tag of a thread: the serial number of its newest message.
func etag(t *thread.Thread) string { return `"` + strconv.Itoa(t.Serial) + `"` }

// ifMatch returns the serial number in the If-Match header of a PATCH, or 0 if the PATCH has no condition.
func (r *call) ifMatch() (serial int, err error) {
	match := r.c.Request().Header.Get("If-Match")
	if match == "" || match == "*" {
		return 0, nil
	}
	serial, err = strconv.Atoi(strings.Trim(match, `"`))
	if err != nil || serial < 1 || match != `"`+strconv.Itoa(serial)+`"` {
		return 0, thread.Bad("If-Match", "must be the ETag of the thread as it was read")
	}
	return serial, nil
}

// ref returns the ref in the path. The owner may instead use any other name that a field re may contain (MESS-6).
func (r *call) ref() string {
	if r.who.Owner {
		if ref, ok := r.Exchange.Resolve(r.c.Request().Context(), r.who, r.path[1]); ok {
			return ref
		}
	}
	return r.path[1]
}

// ThreadView returns a thread with its messages as JSON. The ack of the exchange follows the request, as public servers
// show it (MESS-52).
func ThreadView(t *thread.Thread, messages []thread.Message) wire.Value {
	var out []wire.Value
	for _, m := range messages {
		mess := thread.ToResources(t.Ref, m.Mess)
		if m.Serial == 1 {
			if b, err := thread.FromTree(mess); err == nil {
				mess = b.AddVersion().Tree()
			}
		}
		out = append(out, messageView(m.From, m.At, mess))
		if m.Serial == 1 {
			ack := thread.NewEntry("ack", cmp.Or(t.ClientID, "last"), wire.TextField("ref", t.Ref))
			out = append(out, messageView(thread.ExchangeID, t.Created, thread.Block{ack}.Tree()))
		}
	}
	return summaryTree(exchange.Summarize(t)).With("messages", wire.Arr(out...))
}

func messageView(from string, at time.Time, mess wire.Value) wire.Value {
	return wire.Obj(
		wire.TextField("from", from), wire.Field("ts", thread.TimeText(at)), wire.Field("mess", mess))
}

// patch handles PATCH /requests/{ref} (MESS-55).
func (r *call) patch() error {
	ctx := r.c.Request().Context()
	v, err := r.readObject()
	if err != nil {
		return err
	}
	replay, err := r.readReplayKey(v)
	if err != nil {
		return err
	}
	if stored, found, err := r.Exchange.FindAnswer(ctx, replay); err != nil {
		return err
	} else if found { // since the first call, the caller may no longer see the thread
		return r.respondState(http.StatusOK, stored)
	}
	t, err := r.Exchange.Thread(ctx, r.who, r.ref())
	if exchange.IsStatus(err, http.StatusNotFound) && isClaim(v) && r.Exchange.IsTooLate(ctx, r.who, r.ref()) {
		return thread.ErrTaken
	}
	if err != nil {
		return err
	}
	block, set, err := readPatch(v, t)
	if err != nil {
		return err
	}
	serial, err := r.ifMatch()
	if err != nil {
		return err
	}
	res, err := r.Exchange.Do(ctx, r.who, block, exchange.Options{Lax: true, Re: t.Ref, Set: set, IfSerial: serial, Replay: replay})
	if err == thread.ErrMoved { // errors.Is would match every Conflict
		return thread.ErrNoMatch
	}
	if err != nil {
		return err
	}
	return r.respondState(http.StatusOK, res)
}

// isClaim reports whether a PATCH begins with a claim.
func isClaim(v wire.Value) bool {
	word := v.GetStr("status")
	if list, _ := v.Get("mess"); list.Kind() == wire.Array && list.Len() > 0 {
		status, _ := list.At(0).Get("status")
		word = status.GetStr("code")
	}
	code, _ := thread.ParseCode(word)
	return code == thread.Claimed
}

// readPatch reads {status?, message?, mess?}. It returns the block of mess, and the status to set beside the block: nil
// if the block has a status itself, which then gets the message, or if the call has only a block.
func readPatch(v wire.Value, t *thread.Thread) (thread.Block, *thread.Status, error) {
	f := thread.NewFields(v, "")
	word, message := f.Text("status", 40), f.Text("message", thread.MaxProse)
	code, ok := thread.ParseCode(word)
	f.Check(word == "" || ok, "status", "is not a status")
	list, hasBlock := f.Get("mess")
	f.Check(!hasBlock || list.Kind() == wire.Array, "mess", "must be a list")
	err := f.Err()
	var block thread.Block
	if err == nil && hasBlock {
		const first = 0
		block, err = thread.FromTreeAt(list, first) // unlike FromTree, it accepts an empty list
	}
	if err != nil {
		return nil, nil, err
	}
	lastCode, lastIndex := thread.Code(""), 0
	for i, e := range block {
		if e.Type == "request" || e.Type == "config" {
			return nil, nil, thread.Bad("mess", "a "+e.Type+" does not belong in a thread")
		}
		if e.Type == "status" {
			lastCode, _ = thread.ParseCode(e.Body.GetStr("code"))
			lastIndex = i
		}
	}
	switch {
	case lastCode != "" && word != "" && lastCode != code:
		return nil, nil, thread.Bad("status", "differs from the last status in mess")
	case lastCode != "":
		block[lastIndex].Body = addMessage(block[lastIndex].Body, lastCode, message)
		return block, nil, nil
	case word == "" && len(block) > 0 && message == "":
		return block, nil, nil
	case word == "" && message == "":
		return nil, nil, thread.Bad("", "the body has neither status, message nor mess")
	case word == "":
		code = t.Status
	}
	set, err := thread.ReadStatus(addMessage(thread.NewStatus(t.Ref, code).Body, code, message), "status", thread.Lax)
	return block, &set, err
}

// addMessage adds the message of a PATCH to a status that has none. If the status needs a reason and has none, the
// message is also the reason.
func addMessage(body wire.Value, code thread.Code, message string) wire.Value {
	if message == "" {
		return body
	}
	if !thread.HasValue(body, "message") {
		body = body.With("message", wire.Text(message))
	}
	if (code == thread.Cancelled || code == thread.Declined || code == thread.Failed) && !thread.HasValue(body, "reason") {
		body = body.With("reason", wire.Text(message))
	}
	return body
}
