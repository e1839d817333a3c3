package mcpgateway

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// maxRequest bounds a request of a client, in bytes.
const maxRequest = 16 << 20

// handler serves a gateway at /mcp to clients that have the token.
func handler(g *gateway, token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(got), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="mcp-gateway"`)
			http.Error(w, "the gateway's token is missing or wrong", http.StatusUnauthorized)
			return
		}
		if r.Method != http.MethodPost { // GET and DELETE are for sessions and notifications, which are not supported
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "send messages by POST", http.StatusMethodNotAllowed)
			return
		}
		post(w, r, g)
	})
	return mux
}

// post answers one message of a client.
func post(w http.ResponseWriter, r *http.Request, g *gateway) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "send a message as application/json", http.StatusUnsupportedMediaType)
		return
	}
	if version := r.Header.Get("MCP-Protocol-Version"); version != "" && !slices.Contains(protocols, version) {
		http.Error(w, "the gateway speaks MCP of "+strings.Join(protocols, ", "), http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "the message cannot be read", status)
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		refuse(w, parseError, "send one message of JSON-RPC")
		return
	}
	m.ID = bytes.TrimSpace(m.ID)
	switch {
	case m.JSONRPC != "2.0" || m.Method == "" && m.ID == nil:
		refuse(w, invalidRequest, "this is not a message of JSON-RPC 2.0")
		return
	case len(m.ID) == 0 || m.Method == "": // a notification, or an answer without a request
		w.WriteHeader(http.StatusAccepted)
		return
	case m.ID[0] == '{' || m.ID[0] == '[' || string(m.ID) == "null":
		refuse(w, invalidRequest, "an id is a string or a number")
		return
	}
	answer := message{JSONRPC: "2.0", ID: m.ID}
	if answer.Result, err = g.handle(r.Context(), m.Method, m.Params); err != nil {
		told := new(rpcError)
		if !errors.As(err, &told) {
			told = &rpcError{Code: internalError, Message: err.Error()}
		}
		answer.Error = told
	}
	reply(w, http.StatusOK, answer)
}

// refuse answers a message that is not a request.
func refuse(w http.ResponseWriter, code int, text string) {
	reply(w, http.StatusBadRequest, message{JSONRPC: "2.0", ID: json.RawMessage("null"), Error: &rpcError{Code: code, Message: text}})
}

func reply(w http.ResponseWriter, status int, m message) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(m) // fails only if the client has disconnected
}
