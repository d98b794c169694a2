package door

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	defaultPage  = 50
	maxPage      = 100
	maxPageBytes = 4 << 20 // a page ends after tasks of this size
)

type listQuery struct {
	context, state string
	after          time.Time // the list has no task with an older state; zero: no bound
	size           int
	previous       position // of the last task of the previous page; zero for the first page
}

// position is the place of a task in a list: newest state first, then by id. A page token is its JSON in base64.
type position struct {
	At int64  `json:"at"` // when the task reached its state, in nanoseconds since 1970
	ID string `json:"id"`
}

func (t Task) position() position { return position{t.At.UnixNano(), t.ID} }

func comparePositions(p, q position) int {
	return cmp.Or(cmp.Compare(q.At, p.At), cmp.Compare(p.ID, q.ID))
}

// allStates are the states that a list can be filtered by.
var allStates = []a2a.TaskState{
	a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateInputRequired, a2a.TaskStateAuthRequired,
	a2a.TaskStateCompleted, a2a.TaskStateFailed, a2a.TaskStateCanceled, a2a.TaskStateRejected,
}

func readListQuery(p wire.Value) (listQuery, *message.Error) {
	q := listQuery{context: p.GetStr("contextId"), state: p.GetStr("status"), size: defaultPage}
	switch status, _ := p.Get("status"); {
	case q.state == "TASK_STATE_UNSPECIFIED":
		q.state = ""
	case status.Kind() != wire.String && !status.IsNull(), q.state != "" && !slices.Contains(allStates, a2a.TaskState(q.state)):
		return q, message.ErrParams.At("status must be the name of a task state, such as TASK_STATE_WORKING")
	}
	if v, ok := p.Get("pageSize"); ok && !v.IsNull() {
		n, ok := message.Int(v)
		if !ok || n < 0 || n > maxPage {
			return q, message.ErrParams.At("pageSize must be 1 to 100")
		}
		if n > 0 { // clients send 0 for an unset field
			q.size = n
		}
	}
	if text := p.GetStr("statusTimestampAfter"); text != "" {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return q, message.ErrParams.At("statusTimestampAfter must be an RFC 3339 time")
		}
		q.after = at
	}
	if text := p.GetStr("pageToken"); text != "" {
		token, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil || json.Unmarshal(token, &q.previous) != nil {
			return q, message.ErrParams.At("pageToken does not belong to this list")
		}
	}
	return q, nil
}

// list returns a page of the caller's tasks, newest state first (A2A-11).
func list(ctx context.Context, call message.Call, tasks Tasks) (wire.Value, error) {
	q, e := readListQuery(call.Params)
	if e != nil {
		return wire.Value{}, e
	}
	history, e := call.HistoryLength()
	if e != nil {
		return wire.Value{}, e
	}
	include, _ := call.Params.Get("includeArtifacts")
	artifacts, isBool := include.Boolean()
	if !isBool && !include.IsNull() {
		return wire.Value{}, message.ErrParams.At("includeArtifacts must be true or false")
	}
	all, err := tasks.List(ctx, q.context)
	if err != nil {
		return wire.Value{}, err
	}
	all = slices.DeleteFunc(all, func(t Task) bool {
		return q.state != "" && string(t.State) != q.state || !q.after.IsZero() && t.At.Before(q.after)
	})
	slices.SortFunc(all, func(x, y Task) int { return comparePositions(x.position(), y.position()) })
	total, next := len(all), ""
	if q.previous != (position{}) {
		all = slices.DeleteFunc(all, func(t Task) bool { return comparePositions(t.position(), q.previous) <= 0 })
	}
	shown, size := []wire.Value{}, 0
	for few := range slices.Chunk(all[:min(q.size, len(all))], 10) { // so that only the messages of a few tasks are in memory at once
		if size > maxPageBytes {
			break
		}
		views, err := tasks.Show(ctx, max(history, 0), few...) // no history without historyLength
		if err != nil {
			return wire.Value{}, err
		}
		for _, v := range views {
			if !artifacts {
				v = v.Without("artifacts")
			}
			shown, size = append(shown, v), size+len(v.JSON())
		}
	}
	if len(shown) < len(all) {
		token, _ := json.Marshal(all[len(shown)-1].position()) // never fails
		next = base64.RawURLEncoding.EncodeToString(token)
	}
	return wire.Obj(
		wire.Field("tasks", wire.Arr(shown...)), wire.TextField("nextPageToken", next),
		wire.Field("pageSize", wire.Int(int64(q.size))), wire.Field("totalSize", wire.Int(int64(total))),
	), nil
}
