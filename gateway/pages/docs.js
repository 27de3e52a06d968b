// Shows the OpenAPI document; requests that are tried out go to this gateway, as who is signed in.
"use strict";

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, tryItOutEnabled: true });
