package exchange

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What takes the place of a request says what the work needs, in full: who works on it sees the older threads only where it
// has a part in them.

// maxCopied bounds the files that one unit reads for new threads, and what it writes of them.
const maxCopied = 64 << 20

var errCopies = thread.Conflict("the files of the request are too large to be copied to the new threads")

// whole returns the request of a thread for what takes its place. The files that stand beside the thread go along: they are
// named by addresses that mean something in this transaction alone, and become attachments of the thread that names them.
func (t *tx) whole(ctx context.Context, th *thread.Thread) (wire.Value, error) {
	body, err := t.original(ctx, th)
	if err != nil {
		return body, err
	}
	list, _ := body.Get("context")
	if list.Kind() != wire.Array {
		return body, nil
	}
	elems := slices.Collect(list.Elems())
	for i, c := range elems {
		if c.Len() != 1 || thread.ResourceURI(c.Members()[0].Key, wire.Text("any")) == "" || !thread.AttachmentName.MatchString(c.At(0).GetStr("file")) {
			continue
		}
		rec, err := t.kept(ctx, NSFiles, th.Ref+"/"+c.At(0).GetStr("file"))
		if IgnoreMissing(err) != nil {
			return body, err
		}
		var a Attachment
		if err != nil || json.Unmarshal(rec.Body, &a) != nil {
			continue // named and never there
		}
		if t.read += len(a.Data); t.read > maxCopied {
			return body, errCopies
		}
		uri := "copy:" + rand.Text()
		if t.own == nil {
			t.own = map[string]File{}
		}
		t.own[uri] = File{Mime: a.Mime, Data: a.Data, copied: true}
		form := wire.Obj(wire.TextField("uri", uri))
		if name, ok := c.At(0).Get("name"); ok {
			form = form.With("name", name)
		}
		elems[i] = wire.Obj(wire.Field(c.Members()[0].Key, form))
	}
	return body.With("context", wire.Arr(elems...)), nil
}

// kept returns a record as this block leaves it.
func (t *tx) kept(ctx context.Context, ns, key string) (store.Record, error) {
	i := slices.IndexFunc(t.changes, func(c store.Change) bool { return c.Record.NS == ns && c.Record.Key == key && !c.Delete })
	if i >= 0 {
		return t.changes[i].Record, nil
	}
	return t.x.records.Get(ctx, ns, key, t.now)
}

// leadTo says whether one of the threads is one of others, or waits for one, by however many steps. Beyond a bound it may.
func (t *tx) leadTo(ctx context.Context, refs, others []string, seen map[string]bool) (bool, error) {
	for _, ref := range refs {
		if slices.Contains(others, ref) || len(seen) > 1000 {
			return true, nil
		}
		if seen[ref] {
			continue
		}
		seen[ref] = true
		th, err := t.load(ctx, ref)
		if err != nil {
			if IgnoreMissing(err) != nil {
				return false, err
			}
			continue
		}
		if found, err := t.leadTo(ctx, slices.Concat(th.DependsOn, th.Successors), others, seen); found || err != nil {
			return found, err
		}
	}
	return false, nil
}
