package mess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// ImportCall asks for the import of a directory of this machine. It is the owner's.
type ImportCall struct {
	Dir string `json:"dir"`
}

// ImportProgress is one line of the answer; the last one has Ended.
type ImportProgress struct {
	Done int `json:"done"`
	All  int `json:"all"`
	Imported
	Ended bool   `json:"ended,omitempty"`
	Error string `json:"error,omitempty"`
}

// progressEvery is how often a long import says how far it is.
const progressEvery = time.Second

// importDirectory answers with a line of JSON now and then, and one at the end.
func (d *door) importDirectory(c echo.Context) error {
	body, err := httpapi.Body(c, 64<<10)
	if err != nil {
		return err
	}
	var call ImportCall
	if err := json.Unmarshal(body, &call); err != nil || call.Dir == "" {
		return wire.ErrSchema.At("dir must be a directory")
	}
	if err := httpapi.KeepOpen(c, time.Hour); err != nil {
		return err
	}
	w := c.Response()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	said := time.Now()
	res, err := d.x.ImportDirectory(c.Request().Context(), call.Dir, func(done, all int) {
		if time.Since(said) < progressEvery {
			return
		}
		said = time.Now()
		_, _ = w.Write(append(thread.Encode(ImportProgress{Done: done, All: all}), '\n')) // who has gone needs no progress
		w.Flush()
	})
	last := ImportProgress{Imported: res, Ended: true}
	if err != nil {
		last.Error = thread.PublicText(err)
		if _, refused := errors.AsType[*wire.Error](err); !refused {
			d.x.log.Error("the import of a directory failed", "error", err)
		}
	}
	_, _ = w.Write(append(thread.Encode(last), '\n'))
	return nil
}

// Import takes over threads from files, all or nothing. A thread that is here already is a 409.
func (x *Exchange) Import(ctx context.Context, list [][][]byte) ([]*thread.Thread, error) {
	if err := x.load(); err != nil {
		return nil, err
	}
	parsed := make([]thread.ParsedFile, len(list))
	for i, files := range list {
		var err error
		if parsed[i], err = thread.ParseFiles(files...); err != nil {
			if len(list) > 1 {
				return nil, thread.Bad(fmt.Sprintf("files[%d]", i), thread.PublicText(err))
			}
			return nil, err
		}
	}
	return x.adopt(ctx, parsed)
}

// adopt takes over threads that were read from files, all or nothing.
func (x *Exchange) adopt(ctx context.Context, list []thread.ParsedFile) ([]*thread.Thread, error) {
	var threads []*thread.Thread
	var refs []string
	var changes []store.Change
	tx := x.begin(Actor{ID: thread.ExchangeID, system: true}, Options{})
	for _, f := range list {
		t, messages, err := f.Adopt()
		if err != nil {
			return nil, err
		}
		threads, refs = append(threads, t), append(refs, t.Ref)
		tx.threads[t.Ref], tx.order = t, append(tx.order, t.Ref)
		changes = append(changes, store.Change{Record: threadRecord(t)})
		for _, m := range messages {
			changes = append(changes, store.Change{Record: messageRecord(m, t.Ref), IfRev: store.Any})
		}
	}
	tx.tellTurns()
	err := x.records.Apply(ctx, append(changes, tx.changes...), time.Now())
	if errors.Is(err, store.ErrConflict) {
		return nil, thread.Conflict("a thread with this ref is here already")
	}
	if err != nil {
		return nil, err
	}
	for _, t := range threads {
		x.index.publish(t)
	}
	if tx.told > 0 {
		x.wakeCourier()
	}
	x.changed(refs)
	return threads, nil
}
