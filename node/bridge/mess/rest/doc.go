// Package rest serves an exchange over HTTP (MESS section 10): to executors and requesters with an API key, and to the
// owner, who needs none.
package rest
