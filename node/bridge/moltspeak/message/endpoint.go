package message

import (
	"errors"
	"net/url"
	"strings"
)

// Endpoint returns the message endpoint for a configured or claimed URL (MS-49).
func Endpoint(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", errors.New("url must be an absolute http or https URL")
	}
	path := strings.TrimRight(u.Path, "/")
	switch {
	case strings.HasSuffix(path, "/message"):
	case strings.HasSuffix(path, "/moltspeak/v0.1"):
		path += "/message"
	case strings.HasSuffix(path, "/moltspeak"):
		path += "/v0.1/message"
	case path == "":
		path = "/moltspeak/v0.1/message"
	}
	u.Path = path
	return u.String(), nil
}
