package calendar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/emersion/go-ical"
	"github.com/emersion/go-webdav"
	"github.com/emersion/go-webdav/caldav"

	"github.com/agentmesh/agentmesh/node/client"
)

// CalDAV is one calendar collection on a server (RFC 4791). Calls send the owner's name and password, so the URL must
// be https or loopback.
type CalDAV struct {
	url    *url.URL
	client *caldav.Client
}

var (
	_ Source = (*CalDAV)(nil)
	_ Writer = (*CalDAV)(nil)
)

// Do makes one HTTP call to a URL that the owner configured. It follows no redirect.
type Do func(*http.Request) (*http.Response, error)

// NewCalDAV returns the collection at address. user and password may be empty.
func NewCalDAV(address, user, password string, do Do) (*CalDAV, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "":
		return nil, errors.New("calendar URL must be absolute")
	case u.User != nil:
		return nil, errors.New("calendar URL must have no user info: name a user and a password file")
	case u.Scheme != "https" && (u.Scheme != "http" || !client.IsLoopbackURL(u)):
		return nil, errors.New("calendar URL must be https; http works only for this machine")
	}
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	var transport webdav.HTTPClient = limitedClient{do}
	if user != "" {
		transport = webdav.HTTPClientWithBasicAuth(transport, user, password)
	}
	c, err := caldav.NewClient(transport, u.String())
	if err != nil {
		return nil, fmt.Errorf("calendar URL: %w", err)
	}
	return &CalDAV{url: u, client: c}, nil
}

// limitedClient bounds the size of an answer.
type limitedClient struct{ do Do }

// Do makes the call.
func (c limitedClient) Do(req *http.Request) (*http.Response, error) {
	resp, err := c.do(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, remaining: maxFilesBytes}
	return resp, nil
}

type limitedBody struct {
	io.ReadCloser
	remaining int64
}

var errTooMuch = fmt.Errorf("the calendar server's answer is larger than %d MiB", maxFilesBytes>>20)

// Read fails with errTooMuch after the limit.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.remaining -= int64(n); b.remaining < 0 {
		return 0, errTooMuch
	}
	return n, err
}

// Name returns the URL.
func (c *CalDAV) Name() string { return c.url.String() }

// Busy asks the server for the events of the window (RFC 4791 §7.8) and parses them like the events of a file.
func (c *CalDAV) Busy(ctx context.Context, window Interval, owner *time.Location) (busy []Interval, problems []Problem, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on some malformed lines
			err = errors.New("read calendar: the server sent a malformed line")
		}
	}()
	objects, err := c.client.QueryCalendar(ctx, c.url.Path, &caldav.CalendarQuery{
		CompRequest: caldav.CalendarCompRequest{Name: ical.CompCalendar, AllProps: true, AllComps: true},
		CompFilter: caldav.CompFilter{Name: ical.CompCalendar, Comps: []caldav.CompFilter{
			{Name: ical.CompEvent, Start: window.Start.UTC(), End: window.End.UTC()},
		}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read calendar %s: %w", c.Name(), err)
	}
	var all calendarData
	for _, o := range objects {
		r := reader{owner: owner, window: window}
		if err := r.addCalendar(o.Data); err != nil {
			return nil, nil, fmt.Errorf("read calendar %s: %w", c.Name(), err)
		}
		all.add(r.out, c.url.ResolveReference(&url.URL{Path: o.Path}).String())
	}
	return all.busy(ctx, window)
}

// Put writes the event to the collection.
func (c *CalDAV) Put(ctx context.Context, e Event) error {
	if _, err := c.client.PutCalendarObject(ctx, c.objectPath(e.UID), e.toICal()); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}

// Remove deletes the event from the collection.
func (c *CalDAV) Remove(ctx context.Context, uid string) error {
	err := c.client.RemoveAll(ctx, c.objectPath(uid))
	if err != nil && !strings.HasPrefix(err.Error(), "404 ") { // the library does not export its type of HTTP errors
		return fmt.Errorf("remove event: %w", err)
	}
	return nil
}

func (c *CalDAV) objectPath(uid string) string { return path.Join(c.url.Path, uid+".ics") }
