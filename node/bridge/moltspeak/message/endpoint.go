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
	switch path := strings.TrimRight(u.Path, "/"); {
	case strings.HasSuffix(path, "/message"):
		u.Path = path
	case strings.HasSuffix(path, "/moltspeak/v0.1"):
		u.Path = path + "/message"
	case strings.HasSuffix(path, "/moltspeak"):
		u.Path = path + "/v0.1/message"
	case path == "":
		u.Path = "/moltspeak/v0.1/message"
	}
	return u.String(), nil
}
