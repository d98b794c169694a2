package mess

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
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
		_, _ = w.Write(append(encode(ImportProgress{Done: done, All: all}), '\n')) // who has gone needs no progress
		w.Flush()
	})
	last := ImportProgress{Imported: res, Ended: true}
	if err != nil {
		last.Error = publicText(err)
		if _, refused := errors.AsType[*wire.Error](err); !refused {
			d.x.log.Error("the import of a directory failed", "error", err)
		}
	}
	_, _ = w.Write(append(encode(last), '\n'))
	return nil
}
