package a2a

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsPush has the push notification configurations, by task and configuration id.
const nsPush = "a2a/push"

const (
	maxConfigs   = 10               // of a task
	maxOfCaller  = 1000             // configurations of one caller
	pushAttempts = 12               // of one notification, over about 40 minutes
	pushPause    = 10 * time.Minute // the longest pause between two attempts
	pushTimeout  = 15 * time.Second
)

// pushRow is a configuration, and how far its notifications got.
type pushRow struct {
	bridge.DueRow
	Task   string         `json:"task"`
	Config a2a.PushConfig `json:"config"`
	Old    bool           `json:"old,omitempty"` // the receiver speaks A2A 0.3
	Sent   time.Time      `json:"sent,omitzero"` // of the newest state of the task that was sent or given up
	Tries  int            `json:"tries,omitempty"`
}

func pushKey(task, id string) string { return task + "/" + wire.HashOf(id) }

// change returns the change that stores the row. While Due is set, the row waits for delivery.
func (r *pushRow) change(rev store.Rev, now time.Time) store.Change {
	r.Config.TaskID = a2a.TaskID(r.Task)
	terms := []string{callerTerm(r.Party), "task:" + r.Task}
	return store.Change{IfRev: rev, Max: maxOfCaller, Record: r.Schedule(store.Record{
		NS: nsPush, Key: pushKey(r.Task, r.Config.ID), Body: wire.MustMarshal(r), Terms: terms, Expires: now.Add(keepOpen),
	}, now)}
}

// readPush reads and checks a configuration. The guard of the HTTP client must permit its URL (A2A-13). The guard also
// checks the host at each call.
func (b *Bridge) readPush(call message.Call, v wire.Value, from caller) (*pushRow, error) {
	r := &pushRow{DueRow: bridge.DueRow{Party: from.name}, Old: call.IsOld(), Sent: time.Now().UTC()} // later states are sent
	if err := json.Unmarshal(v.JSON(), &r.Config); err != nil {
		return nil, message.ErrParams.Because(err)
	}
	r.Config.Tenant = ""
	r.Config.ID = cmp.Or(r.Config.ID, wire.HashOf(from.name, r.Config.URL))
	u, err := url.Parse(r.Config.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" || len(r.Config.URL) > 2048:
		return nil, message.ErrParams.At("url must be an absolute http or https URL without user info")
	case len(r.Config.ID) > 128 || len(r.Config.Token) > 1024 || strings.ContainsAny(r.Config.Token, "\r\n"):
		return nil, message.ErrParams.At("id must have at most 128 bytes, and token must be one line of at most 1024 bytes")
	}
	if err := b.cfg.HTTP.CheckURL(client.StrangersReach(b.cfg.Local), u); err != nil {
		return nil, message.ErrParams.At(err.Error())
	}
	if auth := r.Config.Auth; auth != nil && (strings.ContainsAny(auth.Scheme+auth.Credentials, "\r\n") || len(auth.Scheme+auth.Credentials) > 4096 || auth.Scheme == "") {
		return nil, message.ErrParams.At("authentication must have a scheme, and at most 4096 bytes without line breaks")
	}
	return r, nil
}

// checkRoom returns an error if the configuration is new and its task already has maxConfigs configurations.
func (b *Bridge) checkRoom(ctx context.Context, r *pushRow, now time.Time) error {
	page, err := b.records.List(ctx, nsPush, "task:"+r.Task, "", maxConfigs, now)
	isKnown := slices.ContainsFunc(page.Records, func(rec store.Record) bool { return rec.Key == pushKey(r.Task, r.Config.ID) })
	if err == nil && len(page.Records) >= maxConfigs && !isKnown {
		err = message.ErrUnsupported.At("the task has ten push notification configurations")
	}
	return err
}

// pushChanges returns the changes that make the notifications about a task due.
func (b *Bridge) pushChanges(ctx context.Context, t *taskRow, now time.Time) ([]store.Change, error) {
	var out []store.Change
	page, err := b.records.List(ctx, nsPush, "task:"+t.ID, "", 2*maxConfigs, now) // concurrent calls can exceed maxConfigs
	if err != nil {
		return nil, err
	}
	for _, rec := range page.Records {
		r, err := store.Decode[pushRow](rec)
		if err != nil {
			return nil, err
		}
		if r.Due.IsZero() {
			r.Due = now
		}
		out = append(out, r.change(rec.Rev, now)) // even if it is due already: the new revision keeps a delivery that is under way from clearing Due
	}
	return out, nil
}

// notify sends the new states of a task to a webhook, one after the other. If the webhook does not take a state,
// notify sends the state again later. It gives up after pushAttempts attempts, or at once if the guard refuses the
// URL. notify deletes the configuration after the last state of the task, if the task is gone, or if the owner has
// blocked the caller.
func (b *Bridge) notify(ctx context.Context, rec store.Record) error {
	now := time.Now()
	r, err := store.Decode[pushRow](rec)
	if err != nil {
		return err
	}
	t, err := b.loadTask(ctx, r.Task)
	if err == nil {
		err = b.checkNotBlocked(ctx, t.Address)
	}
	if errors.Is(err, message.ErrTaskNotFound) {
		return b.records.Apply(ctx, bridge.Forget(rec), now)
	}
	if err != nil {
		return err
	}
	states, err := b.views(ctx, t, noHistory, contents{})
	if err != nil {
		return err
	}
	for i, v := range states {
		if !v.task.At.After(r.Sent) {
			continue
		}
		v.task.Artifacts = mergeArtifacts(states[:i+1])
		failure := b.post(ctx, r, v.task)
		if ctx.Err() != nil {
			return nil // the node stops
		}
		_, refused := errors.AsType[*client.GuardError](failure)
		r.Tries++
		if failure != nil && !refused && r.Tries < pushAttempts {
			b.log.InfoContext(ctx, "a2a: a push notification failed", "task", r.Task, "tries", r.Tries, "err", failure)
			r.Due = now.Add(bridge.PauseBefore(r.Tries, pushPause))
			return b.saveSent(ctx, r, r.change(rec.Rev, now))
		}
		if failure != nil {
			b.log.WarnContext(ctx, "a2a: gave up on a push notification", "task", r.Task, "err", failure)
		}
		r.Sent, r.Tries = v.task.At, 0
	}
	r.Due = time.Time{}
	change := r.change(rec.Rev, now)
	if t.last().State.Terminal() {
		change = store.Change{IfRev: rec.Rev, Delete: true, Record: store.Record{NS: rec.NS, Key: rec.Key}}
	}
	return b.saveSent(ctx, r, change)
}

// saveSent makes a change of a row after notifications. If the row has changed meanwhile, because the task has a new
// state, the row stays due, and saveSent stores only how far the notifications got, so that no state is sent twice.
func (b *Bridge) saveSent(ctx context.Context, sent pushRow, change store.Change) error {
	for {
		now := time.Now()
		err := b.records.Apply(ctx, []store.Change{change}, now)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		rec, err := b.records.Get(ctx, change.Record.NS, change.Record.Key, now)
		if errors.Is(err, store.ErrNotFound) { // the caller has deleted the configuration
			return nil
		}
		if err != nil {
			return err
		}
		r, err := store.Decode[pushRow](rec)
		if err != nil || r.Sent.After(sent.Sent) { // the caller has replaced the configuration
			return err
		}
		r.Sent, r.Tries = sent.Sent, sent.Tries
		change = r.change(rec.Rev, now)
	}
}

// post sends one notification to a webhook.
func (b *Bridge) post(ctx context.Context, r pushRow, task message.Task) error {
	config, body, version := r.Config, task.TaskResult(), "1.0"
	if r.Old {
		body, version = message.OldTask(task.Value()), "0.3"
	}
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, config.URL, bytes.NewReader(body.JSON()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", message.MediaType)
	req.Header.Set(message.HeaderVersion, version)
	if config.Token != "" {
		req.Header.Set("X-A2A-Notification-Token", config.Token)
	}
	if config.Auth != nil {
		req.Header.Set("Authorization", strings.TrimSpace(config.Auth.Scheme+" "+config.Auth.Credentials))
	}
	resp, err := b.cfg.HTTP.Do(ctx, client.StrangersReach(b.cfg.Local), req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode >= 300 {
		return errors.New(resp.Status)
	}
	return nil
}

func (b *Bridge) handlePush(ctx context.Context, call message.Call, from caller) (wire.Value, error) {
	t, err := b.taskIn(ctx, call, from, "taskId")
	if err != nil {
		return wire.Value{}, err
	}
	now := time.Now()
	switch call.Method {
	case message.CreatePush:
		r, err := b.readPush(call, call.Params, from)
		if err != nil {
			return wire.Value{}, err
		}
		r.Task = t.ID
		change := r.change(store.Any, now)
		if t.last().State.Terminal() { // there is nothing to send
			change.Record.Expires = now.Add(keepEnded)
		}
		if err = b.checkRoom(ctx, r, now); err == nil {
			err = b.records.Apply(ctx, []store.Change{change}, now)
		}
		if errors.Is(err, store.ErrQuota) {
			err = message.ErrBusy.At("the caller has too many push notification configurations")
		}
		if err != nil {
			return wire.Value{}, err
		}
		return wire.ValueOf(r.Config)
	case message.ListPush:
		list := []wire.Value{}
		page, err := b.records.List(ctx, nsPush, "task:"+t.ID, "", maxConfigs, now)
		for _, rec := range page.Records {
			v, e := readConfig(rec)
			list, err = append(list, v), errors.Join(err, e)
		}
		return wire.Obj(wire.Field("configs", wire.Arr(list...)), wire.TextField("nextPageToken", "")), err
	}
	id, e := call.IDOf("id")
	if e != nil {
		return wire.Value{}, e
	}
	rec := store.Record{NS: nsPush, Key: pushKey(t.ID, id)}
	if call.Method == message.DeletePush { // deleting is idempotent
		return wire.Obj(), b.records.Apply(ctx, []store.Change{{IfRev: store.Any, Delete: true, Record: rec}}, now)
	}
	rec, err = b.records.Get(ctx, rec.NS, rec.Key, now)
	if errors.Is(err, store.ErrNotFound) {
		return wire.Value{}, message.ErrTaskNotFound.At("no such push notification configuration")
	}
	if err != nil {
		return wire.Value{}, err
	}
	return readConfig(rec)
}

func readConfig(rec store.Record) (wire.Value, error) {
	r, err := store.Decode[pushRow](rec)
	if err != nil {
		return wire.Value{}, err
	}
	return wire.ValueOf(r.Config)
}
