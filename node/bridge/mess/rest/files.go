package rest

import (
	"crypto/hmac"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// attachment handles GET /requests/{ref}/attachments/{file}. A browser saves the file and never shows it.
func (r *call) attachment() error {
	a, err := r.Exchange.Attachment(r.c.Request().Context(), r.who, r.ref(), r.path[3])
	if err != nil {
		return err
	}
	h := r.c.Response().Header()
	h.Set("Content-Disposition", `attachment; filename="`+a.Name+`"`)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	return r.c.Blob(http.StatusOK, "application/octet-stream", a.Data)
}

// upload stores a file of the owner for the next message of a thread, and answers with its content entry.
func (r *call) upload() error {
	data, err := r.readBody(thread.MaxUpload)
	if err != nil {
		return err
	}
	entry, err := r.Exchange.Upload(r.c.Request().Context(), r.who, r.ref(), r.path[3], data)
	if err != nil {
		return err
	}
	return r.respond(http.StatusCreated, entry)
}

// export handles GET /export/{ref}.
func (r *call) export() error {
	ctx := r.c.Request().Context()
	t, err := r.Exchange.Thread(ctx, r.who, r.ref())
	if err != nil {
		return err
	}
	messages, err := r.Exchange.MessagesOf(ctx, t)
	if err != nil {
		return err
	}
	out := wire.Obj(wire.TextField("ref", t.Ref))
	switch r.c.QueryParam("format") {
	case "v2":
		var files []wire.Value
		for _, f := range thread.ThreadFiles(t, messages) {
			files = append(files, wire.Obj(wire.TextField("name", f.Name), wire.TextField("content", f.Content)))
		}
		out = out.With("format", wire.Text("v2")).With("files", wire.Arr(files...))
		if r.who.Owner { // the owner takes the whole folder of the thread
			names, err := r.Exchange.Attachments(ctx, t.Ref)
			if err != nil {
				return err
			}
			out = out.With("folder", wire.Text(thread.FolderOf(t.Status))).With("attachments", wire.Texts(names))
		}
		return r.respond(http.StatusOK, out)
	case "", "v1":
		text := thread.ThreadText(t, messages)
		if strings.Contains(r.c.Request().Header.Get("Accept"), "yaml") {
			return r.c.Blob(http.StatusOK, "application/yaml", []byte(text))
		}
		return r.respond(http.StatusOK, out.With("format", wire.Text("v1")).With("content", wire.Text(text)))
	}
	return thread.Bad("format", "must be v1 or v2")
}

const progressEvery = time.Second

// importFiles imports a directory or a thread file of the owner. It answers with lines of progress, and the result at the
// end.
func (d *Server) importFiles(c echo.Context) error {
	var call folder.ImportCall
	if err := httpapi.Decode(c, 64<<10, &call); err != nil {
		return err
	}
	if call.Path == "" {
		return wire.ErrSchema.At("path must be a directory or a thread file")
	}
	if err := httpapi.KeepOpen(c, time.Hour); err != nil {
		return err
	}
	w := c.Response()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	lastLine := time.Now()
	res, err := folder.Import(c.Request().Context(), d.Exchange, d.Log, call.Path, func(done, all int) {
		if time.Since(lastLine) < progressEvery {
			return
		}
		lastLine = time.Now()
		// a caller that has gone needs no progress
		_, _ = w.Write(append(wire.MustMarshal(folder.ImportProgress{Done: done, All: all}), '\n'))
		w.Flush()
	})
	last := folder.ImportProgress{Imported: res, Ended: true}
	if err != nil {
		last.Error = thread.PublicText(err)
		if _, refused := errors.AsType[*wire.Error](err); !refused {
			d.Log.Error("an import failed", "error", err)
		}
	}
	_, _ = w.Write(append(wire.MustMarshal(last), '\n'))
	return nil
}

const sharedRoute = "GET shared/{}/attachments/{}"

// sharedFile handles GET /shared/{ref}/attachments/{file}?token=…, which needs no key. A wrong token counts like a
// wrong key.
func (r *call) sharedFile() error {
	ctx := r.c.Request().Context()
	ref, file := r.path[1], r.path[3]
	if !thread.IsSafeRef(ref) || !thread.IsAttachmentName(file) {
		return thread.Missing("no such attachment")
	}
	token, err := r.Exchange.ShareToken(ctx, ref, file)
	if err != nil {
		return err
	}
	if !hmac.Equal([]byte(token), []byte(r.c.QueryParam("token"))) {
		return registry.ErrNoKey
	}
	r.who = exchange.Owner("shared")
	return r.attachment()
}

// IsShared reports whether an address has the form of an address at which an exchange shares a file.
func IsShared(u *url.URL) bool {
	parts := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/api/v1/exchanges/"), "/")
	return strings.HasPrefix(u.EscapedPath(), "/api/v1/exchanges/") && len(parts) == 5 && routeOf(http.MethodGet, parts[1:]) == sharedRoute
}
