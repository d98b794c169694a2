package calendar

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/emersion/go-ical"

	"github.com/agentmesh/agentmesh/node/client"
)

// CalDAV is one calendar collection on a server (RFC 4791). Calls send the owner's name and password, so the URL must
// be https or loopback.
type CalDAV struct {
	url            *url.URL // ends with a slash
	user, password string
	do             Do
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
	return &CalDAV{url: u.JoinPath("/"), user: user, password: password, do: do}, nil
}

// Name returns the URL.
func (c *CalDAV) Name() string { return c.url.String() }

// query asks for the objects with events in a window (RFC 4791 §7.8).
const query = `<?xml version="1.0" encoding="utf-8"?>
<C:calendar-query xmlns:D="DAV:" xmlns:C="urn:ietf:params:xml:ns:caldav"><D:prop><C:calendar-data/></D:prop>` +
	`<C:filter><C:comp-filter name="VCALENDAR"><C:comp-filter name="VEVENT"><C:time-range start="%s" end="%s"/></C:comp-filter></C:comp-filter></C:filter></C:calendar-query>`

// multistatus is the answer to a query (RFC 4918 §13).
type multistatus struct {
	XMLName xml.Name   `xml:"DAV: multistatus"`
	Objects []response `xml:"DAV: response"`
}

type response struct {
	Href   string `xml:"DAV: href"`
	Status string `xml:"DAV: status"`
	Props  []struct {
		Status string `xml:"DAV: status"`
		Prop   struct {
			Data string `xml:"urn:ietf:params:xml:ns:caldav calendar-data"`
		} `xml:"DAV: prop"`
	} `xml:"DAV: propstat"`
}

// data returns the object, or "" and the status of the server.
func (r response) data() (data, status string) {
	status = r.Status
	for _, p := range r.Props {
		if strings.TrimSpace(p.Prop.Data) != "" {
			return p.Prop.Data, ""
		}
		status = cmp.Or(strings.TrimSpace(status), p.Status)
	}
	return "", cmp.Or(strings.TrimSpace(status), "no status")
}

// Busy asks the server for the events of the window and parses them like the events of a folder. An object that cannot
// be read is a problem.
func (c *CalDAV) Busy(ctx context.Context, window Interval, owner *time.Location) ([]Interval, []Problem, error) {
	objects, err := c.query(ctx, window)
	if err != nil {
		return nil, nil, fmt.Errorf("read calendar %s: %w", c.Name(), err)
	}
	var all calendarData
	for _, o := range objects {
		name := o.Href
		if u, err := c.url.Parse(strings.TrimSpace(o.Href)); err == nil {
			name = u.Redacted()
		}
		text, status := o.data()
		switch isMissing := strings.Contains(status, " 404"); {
		case isMissing: // it is gone, or the server lists the collection itself
			all.addProblem(Problem{Source: name, Text: "the server says that it is missing"})
		case text == "":
			all.addProblem(Problem{Source: name, Text: "the server sent no event: " + status, Unread: true})
		default:
			d, err := parse([]byte(text), owner, window)
			all.add(d, name)
			if err != nil {
				all.addProblem(Problem{Source: name, Text: err.Error(), Unread: true})
			}
		}
	}
	return all.busy(ctx, window)
}

func (c *CalDAV) query(ctx context.Context, window Interval) ([]response, error) {
	body := fmt.Sprintf(query, window.Start.UTC().Format(utcLayout), window.End.UTC().Format(utcLayout))
	resp, err := c.call(ctx, "REPORT", c.url, "application/xml; charset=utf-8", []byte(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mediaType == "text/html" {
		return nil, errWebPage
	}
	if resp.StatusCode != http.StatusMultiStatus {
		return nil, fmt.Errorf("the server returned status %d instead of a list of events", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxFilesBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFilesBytes {
		return nil, fmt.Errorf("the answer is larger than %d MiB", maxFilesBytes>>20)
	}
	var list multistatus
	if err := xml.Unmarshal(bytes.Map(withoutControl, text), &list); err != nil {
		return nil, fmt.Errorf("malformed answer: %w", err)
	}
	return list.Objects, nil
}

// withoutControl replaces what XML does not allow. Servers send events as other programs wrote them.
func withoutControl(r rune) rune {
	if r < ' ' && r != '\t' && r != '\r' && r != '\n' || r == '\ufffe' || r == '\uffff' {
		return ' '
	}
	return r
}

var errWebPage = errors.New("it is a web page, not a calendar")

// call makes a call. An answer that reports no success is a statusError.
func (c *CalDAV) call(ctx context.Context, method string, u *url.URL, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if method == "REPORT" {
		req.Header.Set("Depth", "1")
	}
	if c.user != "" {
		req.SetBasicAuth(c.user, c.password)
	}
	resp, err := c.do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	resp.Body.Close()
	if target, err := resp.Location(); err == nil && resp.StatusCode/100 == 3 {
		return nil, statusError{resp.StatusCode, "; it redirects to " + target.Redacted()}
	}
	return nil, statusError{resp.StatusCode, ""}
}

// statusError is an answer of the server that reports no success.
type statusError struct {
	status int
	detail string
}

func (e statusError) Error() string {
	return fmt.Sprintf("calendar server returned status %d%s", e.status, e.detail)
}

// Put writes the event to the collection.
func (c *CalDAV) Put(ctx context.Context, e Event) error {
	resp, err := c.call(ctx, http.MethodPut, c.object(e.UID), ical.MIMEType+"; charset=utf-8", e.Encode())
	if err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return resp.Body.Close()
}

// Remove deletes the event from the collection.
func (c *CalDAV) Remove(ctx context.Context, uid string) error {
	resp, err := c.call(ctx, http.MethodDelete, c.object(uid), "", nil)
	if s, ok := errors.AsType[statusError](err); ok && s.status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove event: %w", err)
	}
	return resp.Body.Close()
}

func (c *CalDAV) object(uid string) *url.URL { return c.url.JoinPath(uid + ".ics") }
